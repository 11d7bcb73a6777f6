"""A policy in a process of its own: the event loop computes nothing, and outlives the policy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Final

import msgpack

from duplex.robot import bootstrap
from duplex.robot.pipe import HEADER_BYTES, Kind, Message, message, payload_size
from engine.api import EngineError, EngineLost, EngineUnavailable
from engine.backoff import Backoff

logger = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""How long a policy may take to close."""

_SLICE: Final = 1 << 18
"""Bytes of one write, so that the largest observation lets others have their turn."""
_PIPE_BYTES: Final = 1 << 20
"""What the kernel holds of it, as far as it is willing: a few cameras' images."""
_STDERR: Final = 2


class RobotPolicy:
    """A policy that robots connect to. If its process dies it is started again.

    `name` is `package.module:factory`, called with `options`; `python` another interpreter to run
    it in. All methods belong to one event loop.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, object],
        python: Path | None = None,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._start = json.dumps({"policy": name, "options": dict(options)}).encode()
        self._python = str(python.expanduser()) if python else sys.executable
        self._backoff = backoff or Backoff()
        self._worker: _Worker | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._connections = itertools.count(1)
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process's id, while there is one."""
        return self._worker.pid if self._worker else None

    async def start(self) -> None:
        """Loads the policy. Raises EngineError in its own words if it can't be."""
        self._worker = await _Worker.launch(self._python, self._start)
        self._keeper = asyncio.create_task(self._keep(self._worker), name="robot-policy")

    async def stop(self) -> None:
        """Closes the policy; idempotent, bounded in time."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None

    def connect(self) -> Link:
        """A place for one robot. Raises EngineUnavailable while there is no policy."""
        if self._worker is None or self._worker.lost.done():
            raise EngineUnavailable("the policy is not running")
        return Link(self._worker, next(self._connections))

    async def _keep(self, worker: _Worker) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            reason = await asyncio.shield(worker.lost)
            self._worker = None
            if time.monotonic() - began >= self._backoff.longest_s:
                failures = 0
            logger.error("the policy is lost: %s", reason)
            while True:
                await asyncio.sleep(self._backoff.delay_s(failures))
                failures += 1
                try:
                    worker = await _Worker.launch(self._python, self._start)
                    break
                except EngineError as error:
                    logger.error("the policy can't start again: %s", error)
            self.restarts += 1
            self._worker = worker


class Link:
    """One robot's connection to the policy. One request at a time."""

    def __init__(self, worker: _Worker, connection: int) -> None:
        self._worker = worker
        self.connection = connection
        self.metadata = worker.metadata
        """What the robot is told first, packed."""

    async def ask(self, payload: bytes, arrived: float, prev_total_ms: float | None) -> Message:
        """Hands over a robot's message; returns a REPLY, INVALID or FAILED.

        Raises EngineLost if the policy's process dies, or has died.
        """
        request = Message(Kind.REQUEST, self.connection, payload, arrived, prev_total_ms)
        return await self._worker.ask(request)

    def leave(self) -> None:
        """The robot is gone."""
        self._worker.send(Message(Kind.LEAVE, self.connection))


class _Worker:
    """The policy's process, seen from the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._process: asyncio.subprocess.Process | None = None
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self.metadata = b""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the process is gone, with the reason in words."""

    @classmethod
    async def launch(cls, python: str, start: bytes) -> _Worker:
        """Starts a process and waits until its policy is there. Raises EngineError."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIPE_BYTES)
        with contextlib.closing(theirs):
            worker = cls(*await asyncio.open_unix_connection(sock=ours))
            try:
                worker._process = await _spawn(python, theirs.fileno())
                theirs.close()
                await worker._load(start)
            except BaseException:
                await worker._end(patience_s=0)
                raise
        worker._do(worker._read())
        return worker

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def ask(self, request: Message) -> Message:
        if self.lost.done():
            raise EngineLost("the policy has stopped")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[request.connection] = answer
        self.send(request)
        try:
            return await answer
        finally:
            self._waiting.pop(request.connection, None)

    def send(self, message: Message) -> None:
        """Sends in the order of the calls, whole whatever becomes of the caller."""
        if not self.lost.done():
            self._do(self._write(message))

    async def stop(self) -> None:
        """Lets the policy close, or kills it."""
        self.send(Message(Kind.STOP))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.shield(self.lost)
        await self._end(patience_s=0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, start: bytes) -> None:
        try:
            await self._write(Message(Kind.START, payload=start))
            first = await self._next()
        except (EOFError, ConnectionError) as error:
            how = await self._end(patience_s=STOP_S)
            raise EngineError(f"the policy's process ended at its start: {how}") from error
        if first.kind is Kind.UNABLE:
            raise EngineError(first.payload.decode())
        self.metadata = bytes(first.payload)

    async def _next(self) -> Message:
        header = await self._reader.readexactly(HEADER_BYTES)
        return message(header, await self._reader.readexactly(payload_size(header)))

    async def _read(self) -> None:
        """Passes answers on until the process is gone."""
        try:
            while True:
                answer = await self._next()
                waiting = self._waiting.get(answer.connection)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (EOFError, ConnectionError):
            logger.debug("the policy's process has hung up")
        finally:
            reason = await self._end(patience_s=STOP_S)
            self.lost.set_result(reason)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(EngineLost(f"the policy has stopped: {reason}"))

    async def _write(self, message: Message) -> None:
        async with self._order:
            self._writer.write(message.header)
            view = memoryview(message.payload)
            for at in range(0, len(view), _SLICE):
                self._writer.write(view[at : at + _SLICE])
                await self._writer.drain()

    def _do(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):  # of which _read hears
            logger.error("the policy's pipe failed", exc_info=error)
            self._writer.transport.abort()

    async def _end(self, *, patience_s: float) -> str:
        """Sees the process off, which hears of it when we hang up. Returns how it ended."""
        if self._process is None:
            self._writer.transport.abort()
            return "it never ran"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        self._writer.transport.abort()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        code = await self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


async def _spawn(python: str, channel: int) -> asyncio.subprocess.Process:
    arguments = [python, bootstrap.__file__, str(channel), str(Path(msgpack.__file__).parent)]
    try:
        return await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=_STDERR, pass_fds=(channel,)
        )
    except OSError as error:
        raise EngineError(f"{python} can't be run: {error.strerror}") from error
