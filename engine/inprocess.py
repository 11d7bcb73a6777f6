"""An engine in this process: a thread runs the model, the event loop never does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.api import EngineConfig, EngineError, EngineSpec, Frame
from engine.backoff import Backoff
from engine.build import build_core
from engine.gate import Gate
from engine.messages import Command, Event, Feed, Order, in_words
from engine.model import LockstepModel
from engine.serve import serve
from engine.supervisor import Place, SupervisedEngine

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_S = 5.0
"""How long a stop waits for what the model is doing."""


class InProcessEngine(SupervisedEngine):
    """Implements `engine.api.Engine` with a thread for the model.

    `build` runs in that thread, and again after the model has failed. Of the config, `slots`,
    `admission`, `step_mode`, `max_in_flight` and `chat` matter here.
    """

    def __init__(
        self,
        build: Callable[[], LockstepModel],
        config: EngineConfig,
        *,
        backoff: Backoff | None = None,
        place: Place | None = None,
    ) -> None:
        async def launch(take: Callable[[Event], None], gate: Gate) -> _Thread:
            link = _Thread(build, config, take, gate)
            try:
                await link.started
            except asyncio.CancelledError:
                await link.stop()
                raise
            return link

        super().__init__(launch, backoff or Backoff(), config.chat, place)


class _Thread:
    """A model's thread, seen from the event loop."""

    def __init__(
        self,
        build: Callable[[], LockstepModel],
        config: EngineConfig,
        take: Callable[[Event], None],
        gate: Gate,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._gate = gate
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.started: asyncio.Future[EngineSpec] = self._loop.create_future()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        threading.Thread(target=self._run, args=(build, config), name="engine", daemon=True).start()

    @property
    def spec(self) -> EngineSpec:
        return self.started.result()

    def send(self, command: Order) -> None:
        self._commands.put(command)

    def feed(self, frames: Sequence[Frame], arrived: float) -> None:
        self._commands.put(Feed(frames, arrived))

    def abort(self, reason: str) -> None:
        self._commands.put(None)
        self._end(reason)

    async def stop(self) -> None:
        self._commands.put(None)
        await asyncio.wait([self.lost], timeout=STOP_S)
        if not self.lost.done():
            logger.error("the model is still busy after %g s; its thread is left alone", STOP_S)
            self._end("stopped")

    def _run(self, build: Callable[[], LockstepModel], config: EngineConfig) -> None:
        """The thread."""
        try:
            core = build_core(build(), config)
            self._post(self._begin, core.spec)
            port = _Port(self._commands, lambda event: self._post(self._deliver, event))
            serve(core, port, self._gate)
        except Exception as error:
            logger.exception("the model's thread has failed")
            self._post(self._end, in_words(error))
        else:
            self._post(self._end, "stopped")
        finally:
            self._gate.closed = False

    def _post(self, callback: Callable[[T], None], value: T) -> None:
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, value)

    def _begin(self, spec: EngineSpec) -> None:
        if not self.started.done():
            self.started.set_result(spec)

    def _deliver(self, event: Event) -> None:
        if not self.lost.done():
            self._take(event)

    def _end(self, reason: str) -> None:
        if not self.started.done():
            self.started.set_exception(EngineError(reason))
        if not self.lost.done():
            self.lost.set_result(reason)


class _Port:
    """The thread's end: commands come by a queue, events go by a callback."""

    def __init__(
        self, commands: queue.SimpleQueue[Command | None], tell: Callable[[Event], None]
    ) -> None:
        self._commands = commands
        self._tell = tell

    def receive(self, *, wait_s: float | None) -> list[Command] | None:
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._commands.get(not commands and wait_s != 0, wait_s)
                if command is None:
                    return None
                commands.append(command)
        return commands

    def send(self, event: Event) -> None:
        self._tell(event)
