"""An engine in a process of its own: the event loop runs no model, and survives one.

Frames cross by two rings in shared memory (`engine.shm`), all else by one socket
(`engine.channel`). Importing this module loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from engine.api import (
    EngineConfig,
    EngineError,
    EngineSpec,
    Frame,
    StepOutput,
    Timings,
)
from engine.channel import Failed, Fed, Loaded, Stepped, pack, up
from engine.messages import Event, Order, Outputs
from engine.shm import Ring, create_memory
from engine.supervisor import Backoff, SupervisedEngine

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""How long a process may take to end when its owner hangs up, and again after SIGKILL."""

_STDERR = 2


class ChildEngine(SupervisedEngine):
    """Implements `engine.api.Engine` with a child process for the model.

    The child ends with this process, however that ends. If the child dies, its leases are over,
    and another is started after a wait that `backoff` gives.
    """

    def __init__(self, config: EngineConfig, *, backoff: Backoff | None = None) -> None:
        async def launch(take: Callable[[Event], None]) -> _Child:
            return await _Child.launch(config, take)

        super().__init__(launch, backoff or Backoff(), config.chat)

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._link.pid if isinstance(self._link, _Child) else None


class _Child(asyncio.Protocol):
    """The child process, seen from the event loop."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        loop = asyncio.get_running_loop()
        self._take = take
        self._unpacker = up()
        self._transport: asyncio.Transport
        self._process: asyncio.subprocess.Process | None = None
        self._rings: tuple[Ring, Ring] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._last_words = ""
        self.loaded: asyncio.Future[EngineSpec] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()

    @classmethod
    async def launch(cls, config: EngineConfig, take: Callable[[Event], None]) -> _Child:
        """Starts a child and waits until its model is there. Raises EngineError if it can't be."""
        child = cls(take)
        try:
            with contextlib.ExitStack() as stack:
                memory = _memory(stack), _memory(stack)
                ours, theirs = socket.socketpair()
                stack.callback(theirs.close)
                await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
                try:
                    child._process = await _spawn(config, theirs.fileno(), memory)
                    theirs.close()
                    either: list[asyncio.Future[Any]] = [child.loaded, child.lost]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not child.loaded.done():
                        raise EngineError(child.lost.result())
                    child._rings = Ring(memory[0], child.spec), Ring(memory[1], child.spec)
                except BaseException:
                    await child.stop()
                    raise
        except OSError as error:
            raise EngineError(f"the engine's process can't be started: {error}") from error
        return child

    @property
    def spec(self) -> EngineSpec:
        return self.loaded.result()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send(self, command: Order) -> None:
        if not self._transport.is_closing():
            self._transport.write(pack(command))

    def feed(self, frames: Sequence[Frame], arrived: float) -> None:
        if self._rings is not None and not self._transport.is_closing():
            batch = self._rings[0].write(
                [(frame.lease, frame.epoch, frame.index, 0, 0) for frame in frames],
                [frame.pcm for frame in frames],
            )
            self._transport.write(pack(Fed(batch, arrived)))

    def abort(self, reason: str) -> None:
        self._last_words = reason
        self._transport.abort()

    async def stop(self) -> None:
        # A child hears that we hang up; one that is still starting hears SIGTERM only.
        self._transport.abort()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        await asyncio.shield(self.lost)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.push(data):
            match message:
                case Stepped():
                    self._take(Outputs(self._outputs_of(message)))
                case Loaded(spec=spec):
                    self.loaded.set_result(spec)
                case Failed(message=words):
                    self._last_words = words
                case _:
                    self._take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reaping = asyncio.create_task(self._reap())

    def _outputs_of(self, step: Stepped) -> list[StepOutput]:
        assert self._rings is not None
        fields, pcm = self._rings[1].read(step.batch)
        timings = Timings(step.step_s, step.rows)
        outputs = [
            StepOutput(lease, epoch, index, sound if heard else None, text, wait_ns * 1e-9, timings)
            for (lease, epoch, index, heard, wait_ns), sound, text in zip(
                fields, pcm, step.text or [""] * len(fields), strict=True
            )
        ]
        outputs += [
            StepOutput(e.lease, e.epoch, e.index, None, "", 0.0, timings, e.error)
            for e in step.ended
        ]
        return outputs

    async def _reap(self) -> None:
        """Sees the process off, then says so."""
        how = await _end_of(self._process) if self._process else "its process never started"
        if self._rings is not None:
            for ring in self._rings:
                ring.close()
        self.lost.set_result(self._last_words or how)


def _memory(stack: contextlib.ExitStack) -> int:
    descriptor = create_memory()
    stack.callback(os.close, descriptor)
    return descriptor


async def _spawn(
    config: EngineConfig, channel: int, memory: tuple[int, int]
) -> asyncio.subprocess.Process:
    # Our own package, and never one of that name in the current directory (-P).
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if config.threads is not None:
        environ["OMP_NUM_THREADS"] = environ["MKL_NUM_THREADS"] = str(config.threads)
    arguments = [str(channel), str(memory[0]), str(memory[1]), msgspec.json.encode(config).decode()]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-X", "faulthandler", "-m", "engine.worker", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=_STDERR,
        pass_fds=(channel, *memory),
        env=environ,
    )


async def _end_of(process: asyncio.subprocess.Process) -> str:
    """Waits for a process to end, then kills it. Returns how it ended."""
    try:
        code = await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        try:
            code = await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            logger.error("process %d doesn't end on SIGKILL; it is left", process.pid)
            return "its process hangs"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"
