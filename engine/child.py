"""An engine in a process of its own: the event loop runs no model, and survives one.

`engine.link` is the line to it. Importing this module loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.api import EngineConfig, EngineError
from engine.backoff import Backoff
from engine.gate import Gate
from engine.link import ChannelLink, ring_memory
from engine.messages import Event
from engine.supervisor import Place, SupervisedEngine

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""How long a process may take to end when its owner hangs up, and again after SIGKILL."""

ANSWER_S: Final = 60.0
"""How long an engine may take to answer, which it does between two pieces of its work."""

_STDERR = 2


class ChildEngine(SupervisedEngine):
    """Implements `engine.api.Engine` with a child process for the model.

    The child ends with this process, however that ends. If the child dies, or doesn't answer for
    `answer_s`, its leases are over, and another is started after a wait that `backoff` gives.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        listener: socket.socket | None = None,
        backoff: Backoff | None = None,
        place: Place | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`listener`: where other processes attach themselves (`engine.attached`). It stays the
        caller's.
        """

        async def launch(take: Callable[[Event], None], gate: Gate) -> _Child:
            return await _Child.launch(config, listener, take, gate)

        super().__init__(launch, backoff or Backoff(), config.chat, place, answer_s=answer_s)

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._link.pid if isinstance(self._link, _Child) else None


class _Child(ChannelLink):
    """The child process, seen from the event loop."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        super().__init__(take)
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def launch(
        cls,
        config: EngineConfig,
        listener: socket.socket | None,
        take: Callable[[Event], None],
        gate: Gate,
    ) -> _Child:
        """Starts a child and waits until its model is there. Raises EngineError if it can't be."""
        child = cls(take)
        try:
            with contextlib.ExitStack() as stack:
                memory = ring_memory(stack)
                ours, theirs = socket.socketpair()
                stack.callback(theirs.close)
                await child.connect(ours)
                try:
                    child._process = await _spawn(config, theirs.fileno(), memory, gate, listener)
                    theirs.close()
                    await child.until_loaded(memory)
                except BaseException:
                    await child.stop()
                    raise
        except OSError as error:
            raise EngineError(f"the engine's process can't be started: {error}") from error
        return child

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def stop(self) -> None:
        """Ends the process; idempotent, bounded in time."""
        # A child hears that we hang up; one that is still starting hears SIGTERM only.
        self._transport.abort()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        await asyncio.shield(self.lost)

    async def how_it_ended(self) -> str:
        """Waits for the process."""
        return await _end_of(self._process) if self._process else "its process never started"


async def _spawn(
    config: EngineConfig,
    channel: int,
    memory: tuple[int, int],
    gate: Gate,
    listener: socket.socket | None,
) -> asyncio.subprocess.Process:
    # Our own package, and never one of that name in the current directory (-P).
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    passed = [channel, *memory, gate.memory]
    if listener is not None:
        passed.append(listener.fileno())
    numbers = (*(*passed, -1)[:5], gate.engine)
    arguments = [*map(str, numbers), msgspec.json.encode(config).decode()]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-X", "faulthandler", "-m", "engine.worker", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=_STDERR,
        pass_fds=passed,
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
