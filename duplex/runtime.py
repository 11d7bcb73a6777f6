"""The runtime: pairs the frames of sessions with the slots of an engine.

Down: a session's frame is handed over at once, with all others that are there, in one batch. Up:
each step's outputs are routed to their sessions, where stale ones are dropped by the fence. The
runtime owns who has which lease; a lease ends exactly once, here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from duplex.chat import Chat
from duplex.errors import SessionError, internal_error, overloaded, resource_exhausted
from duplex.metrics import Metrics
from duplex.resume import Resumption
from duplex.session import Mode, Session
from duplex.settings import Capabilities, Settings
from engine.api import (
    BadParams,
    Engine,
    EngineError,
    EngineLost,
    EngineSpec,
    EngineUnavailable,
    Frame,
    Lease,
    NoFreeSlot,
    OpenParams,
    Overloaded,
    StepOutput,
)
from media.clock import Clock, SystemClock
from media.vad import Vad

logger = logging.getLogger(__name__)

_IDLE_CHECK_S = 1.0
_SOON_S = 0.1
"""So long a caller waits for a slot before it is refused: the one who has just left may not be
seen off yet.
"""
_FEED_INTERVAL_S = 3e-5
"""Between two batches, for each live session; see `Runtime.feed`."""
_MAX_FEED_INTERVAL_S = 0.006
_SHORT_STEP_S = 0.002
"""Of a model whose steps are longer than this, they make the batches."""


class Runtime:
    """One engine and the sessions that live on it. All methods belong to one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock | None = None,
        vad: Vad | None = None,
        drain_s: float = 10.0,
        resume_grace_s: float = 0.0,
        token_prefix: str = "",
    ) -> None:
        """`token_prefix` as in `Resumption`."""
        self.engine = engine
        self.chat = Chat(engine)
        self.clock: Clock = clock or SystemClock()
        self.vad = vad or Vad()
        self.metrics = Metrics()
        self.sessions: dict[str, Session] = {}
        self.draining = False
        self.session_drain_s = drain_s
        """How long a closing session may wait for the outputs of frames under way."""
        self._freed = asyncio.Event()
        """Set when a slot was given back, or could be now."""
        self.resumption = Resumption(
            self.clock, grace_s=resume_grace_s, on_hold=self._freed.set, token_prefix=token_prefix
        )
        self.yield_slot = self.resumption.yield_slot
        """Ends a session without a client, for one that needs its slot; False if there is none."""
        self._by_lease: dict[int, Session] = {}
        self._ready: list[Frame] = []
        self._next_feed = 0.0
        self._step_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pumps: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    @property
    def spec(self) -> EngineSpec:
        """What the engine serves. Raises EngineUnavailable before `start`."""
        return self.engine.spec

    @property
    def capabilities(self) -> Capabilities:
        """What sessions here can do."""
        return Capabilities.of(self.spec, resume=self.resumption.enabled)

    @property
    def not_ready(self) -> str | None:
        """Why no session can be opened now, or None."""
        if self.draining:
            return "draining"
        if any(pump.done() for pump in self._pumps):
            return "the runtime has failed"
        return None if self.engine.ready else "the model engine is starting"

    async def start(self) -> None:
        """Starts the engine; raises EngineError if it can't."""
        await self.engine.start()
        self._pumps = [
            asyncio.create_task(self._pump(), name="runtime-pump"),
            asyncio.create_task(self._expire(), name="runtime-expire"),
        ]

    async def stop(self) -> None:
        """Ends all sessions and the engine; idempotent."""
        self.draining = True
        self.chat.drain()
        await self.resumption.close()
        sessions = list(self.sessions.values())
        await asyncio.gather(*(session.close("server_shutdown") for session in sessions))
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self.engine.stop()
        self.vad.close()

    async def drain(self, timeout_s: float) -> bool:
        """Refuses what is new and waits for live sessions and requests; True if all ended."""
        self.draining = True
        self.chat.drain()
        try:
            async with asyncio.timeout(timeout_s):
                while self.sessions:
                    self._ended.clear()
                    await self._ended.wait()
                await self.chat.idle()
        except TimeoutError:
            return False
        return True

    def create_session(
        self,
        session_id: str,
        settings: Settings,
        mode: Mode = Mode.DUPLEX,
        *,
        paced: bool = False,
    ) -> Session:
        """A new session, without a slot yet; see `Session`. Raises SessionError while draining."""
        if self.draining:
            self.metrics.refused["draining"] += 1
            raise SessionError(
                "resource_exhausted",
                "This server is shutting down.",
                type="server_error",
                fatal=True,
            )
        session = Session(self, session_id, settings, mode, paced=paced)
        self.sessions[session_id] = session
        return session

    async def open(self, session: Session, params: OpenParams) -> Lease:
        """Takes a slot for the session. Raises SessionError with the reason if there is none."""
        try:
            lease = await self._take_slot(params)
        except Overloaded as error:
            self.metrics.refused["overloaded"] += 1
            logger.info("session %s was refused: %s", session.id, error)
            raise overloaded() from error
        except NoFreeSlot as error:
            self.metrics.refused["resource_exhausted"] += 1
            raise resource_exhausted(self.spec.slots) from error
        except BadParams as error:
            raise SessionError("invalid_value", str(error), param=error.field) from error
        except EngineError as error:
            if not isinstance(error, EngineUnavailable | EngineLost):
                logger.exception("session %s: the engine couldn't open a slot", session.id)
            self.metrics.refused["engine_unavailable"] += 1
            raise SessionError(
                "internal_error",
                "The model isn't running at the moment. Try again in a few seconds.",
                type="server_error",
                fatal=True,
            ) from error
        self._by_lease[lease.id] = session
        self.metrics.sessions_opened += 1
        return lease

    def feed(self, frame: Frame) -> None:
        """Queues a frame; it leaves at once, or, if others have just left and steps are short, with
        all that come in the next moment: to wake the engine costs more than such a frame. The
        moment is longer the more sessions there are, 6 ms at most, and nothing when there are few.
        """
        if not self._ready:
            loop = asyncio.get_running_loop()
            if loop.time() < self._next_feed:
                loop.call_at(self._next_feed, self._flush)
            else:
                loop.call_soon(self._flush)
        self._ready.append(frame)
        self.metrics.frames_in += 1

    async def release(self, lease: Lease) -> None:
        """Gives a lease back; idempotent."""
        if self._by_lease.pop(lease.id, None) is not None:
            await self.engine.close(lease)
            self._freed.set()

    def forget(self, session: Session) -> None:
        """Takes an ended session off the list."""
        self.sessions.pop(session.id, None)
        self._ended.set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs work that must end even if the task that asked for it is cancelled."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_slot(self, params: OpenParams) -> Lease:
        waited = False
        while True:
            self._freed.clear()
            try:
                return await self.engine.open(params)
            except NoFreeSlot:
                if await self.yield_slot():
                    continue
                if waited:
                    raise
                waited = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S):
                        await self._freed.wait()

    def _flush(self) -> None:
        frames, self._ready = self._ready, []
        if frames:
            if self._step_s < _SHORT_STEP_S:
                interval = min(_MAX_FEED_INTERVAL_S, _FEED_INTERVAL_S * len(self._by_lease))
                self._next_feed = asyncio.get_running_loop().time() + interval
            self.engine.feed(frames)

    def _route(self, outputs: list[StepOutput]) -> None:
        if not outputs:
            return
        timings = outputs[0].timings
        self._step_s = timings.step_s
        self.metrics.step_s.observe(timings.step_s)
        self.metrics.step_rows.observe(timings.rows)
        now = self.clock.now()
        for output in outputs:
            session = self._by_lease.get(output.lease)
            if session is None:
                self.metrics.stale_frames += 1
            else:
                try:
                    session.deliver(output, now)
                except Exception:
                    logger.exception("session %s failed at routing", session.id)
                    session.abort(internal_error(), "internal_error")

    async def _pump(self) -> None:
        """Routes steps for ever; survives an engine's death, its sessions don't."""
        while True:
            try:
                async for outputs in self.engine.steps():
                    self._route(outputs)
                return
            except EngineLost as error:
                self.metrics.engine_losses += 1
                lost = [self._by_lease.pop(id) for id in error.leases & self._by_lease.keys()]
                logger.error("an engine died (%s); %d sessions end", error, len(lost))
                self._ready = [f for f in self._ready if f.lease not in error.leases]
                for session in lost:
                    session.abort(internal_error(), "internal_error")

    async def _expire(self) -> None:
        while True:
            await self.clock.sleep_until(self.clock.now() + _IDLE_CHECK_S)
            now = self.clock.now()
            for session in list(self.sessions.values()):
                session.expire_if_idle(now)
