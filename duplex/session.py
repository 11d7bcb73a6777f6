"""A session: one conversation, from its first settings to the return of its slot.

Commands come in by `handle`, in order, and wait there for room (that wait is the backpressure of
client-clocked input: nobody reads the socket meanwhile). Outputs come in by `deliver` and leave
as events through the outbox. A session on a lockstep model is one response: it is created with
the first frame of audio and done when the session closes.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from typing import TYPE_CHECKING

from msgspec import UNSET

from duplex.commands import (
    AckEvent,
    AppendAudio,
    BargeIn,
    ClearInput,
    CloseSession,
    Command,
    CommitInput,
    Heartbeat,
    UpdateSession,
)
from duplex.errors import SessionError, internal_error
from duplex.events import (
    Event,
    Failed,
    HeartbeatAcknowledged,
    InputCleared,
    InputCommitted,
    OutputAudio,
    OutputText,
    OverlapDecided,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionUpdated,
)
from duplex.fence import Fence
from duplex.ids import new_id
from duplex.outbox import Outbox, OutboxOverflow
from engine.api import Frame, Lease, Pcm, StepOutput
from media.formats import BadAudio
from media.input_clock import InputClock

if TYPE_CHECKING:
    from duplex.runtime import Runtime
    from duplex.settings import Settings, SettingsPatch, Substitution

logger = logging.getLogger(__name__)

_OUTBOX_FRAMES = 64
_LOST_FRAMES = 125
"""At 80 ms a frame: a reader that loses ten seconds in a row is gone."""

_FIXED_BY_FIRST_FRAME = (
    "voice",
    "persona",
    "voice_audio",
    "seed",
    "text_temperature",
    "text_top_k",
    "audio_temperature",
    "audio_top_k",
)


class State(enum.Enum):
    """A session's life. It only goes forward."""

    NEW = enum.auto()
    LIVE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class Session:
    """One conversation. Its owner reads `outbox` and calls `handle` for one command at a time."""

    def __init__(self, runtime: Runtime, session_id: str, settings: Settings) -> None:
        spec = runtime.spec
        self.id = session_id
        self.settings = settings
        self.fence = Fence(session_id)
        self.state = State.NEW
        self.outbox = Outbox(max_audio=_OUTBOX_FRAMES, max_lost=_LOST_FRAMES)
        self.broken = asyncio.Event()
        """Set when the connection should be cut: its reader doesn't read."""
        self.substitutions: dict[str, Substitution] = {}
        self._runtime = runtime
        self._lease: Lease | None = None
        self._input = InputClock(spec.frame_size, spec.sample_rate)
        self._max_in_flight = spec.max_in_flight
        self._frame_s = spec.frame_s
        self._fed = 0
        self._fed_at: deque[float] = deque()
        self._returned = asyncio.Event()
        self._frames_out = 0
        self._transcript: list[str] = []
        self._last_item: str | None = None
        self._last_command = runtime.clock.now()
        self._finishing: asyncio.Task[None] | None = None
        self._announced = False

    @property
    def in_flight(self) -> int:
        """Frames fed whose outputs haven't come."""
        return len(self._fed_at)

    def start(self) -> None:
        """Says that the session exists, once: at once, or else when it has its slot."""
        if not self._announced:
            self._announced = True
            self._emit(SessionCreated(settings=self.settings, substitutions=self._substituted()))

    async def handle(self, command: Command) -> None:
        """Carries out one command; what goes wrong becomes an event."""
        self._last_command = self._runtime.clock.now()
        if self.state in (State.CLOSING, State.CLOSED):
            return
        try:
            await self._carry_out(command)
        except SessionError as error:
            error.event_id = command.event_id
            if error.fatal:
                self.abort(error, error.code)
            else:
                self.fail(error)

    def fail(self, error: SessionError) -> None:
        """Tells the client of an error that the session survives."""
        self._runtime.metrics.errors[error.code] += 1
        self._emit(Failed(error=error))

    def abort(self, error: SessionError, reason: str) -> None:
        """Ends the session at once because of an error."""
        if self.state is not State.CLOSED:
            self.fail(error)
            self._start_finishing(reason, drain=False)

    async def close(self, reason: str) -> None:
        """Ends the session: delivers what is under way, gives the slot back. Idempotent."""
        await asyncio.shield(self._start_finishing(reason, drain=True))

    def deliver(self, output: StepOutput, now: float) -> None:
        """Takes one output of the engine: the routing step, where stale ones are dropped."""
        metrics = self._runtime.metrics
        latency = now - self._fed_at.popleft()
        metrics.frame_s.observe(latency)
        if latency > self._frame_s:
            metrics.late_frames += 1
        self._returned.set()
        if output.error:
            logger.error("session %s: the engine ended its lease: %s", self.id, output.error)
            self.abort(internal_error(), "internal_error")
        if output.pcm is None:
            return
        if not self.fence.admits(output.epoch):
            metrics.stale_frames += 1
            return
        if self.fence.response is None:
            self._begin_response()
        metrics.frames_out += 1
        settings = self.settings
        if output.text:
            self._transcript.append(output.text)
            self._emit(OutputText(fence=self.fence, text=output.text))
        if not settings.output_text_only:
            self._emit(
                OutputAudio(
                    fence=self.fence,
                    format=settings.output_format,
                    pcm=output.pcm,
                    frame_index=self._frames_out,
                    timings=output.timings if settings.stage_metrics else None,
                )
            )
        self._frames_out += 1

    def expire_if_idle(self, now: float) -> None:
        """Ends the session if its client has said nothing for longer than it allowed itself."""
        limit = self.settings.idle_timeout_s
        if limit is not None and self.state is State.LIVE and now - self._last_command > limit:
            self._emit(SessionExpired(idle_timeout_s=limit))
            self._start_finishing("idle_timeout", drain=False)

    # --- commands ---------------------------------------------------------------------------

    async def _carry_out(self, command: Command) -> None:
        match command:
            case AppendAudio():
                await self._append(command)
            case AckEvent():
                pass
            case UpdateSession():
                await self._update(command)
            case CommitInput():
                item = new_id("item")
                self._emit(InputCommitted(item_id=item, previous_item_id=self._last_item))
                self._last_item = item
            case ClearInput():
                self._input.clear()
                self._emit(InputCleared())
            case BargeIn():
                self._barge_in(command)
            case Heartbeat():
                self._emit(HeartbeatAcknowledged())
            case CloseSession():
                await self.close("client_close")
            case _:
                raise SessionError(
                    "unsupported_event", f"This session takes no {type(command).__name__}."
                )

    async def _append(self, command: AppendAudio) -> None:
        settings = self.settings
        if self._lease is None:
            await self._open(settings)
            self.start()
        try:
            frames = self._input.push(
                command.audio,
                command.format or settings.input_format,
                command.rate or settings.input_rate,
            )
        except BadAudio as error:
            raise SessionError("bad_audio", str(error), param="audio") from error
        for pcm in frames:
            await self._feed(pcm)

    async def _update(self, command: UpdateSession) -> None:
        """Applies the patch whole or not at all; the first update takes the slot."""
        settings = self.settings.patched(command.patch)
        if self._fed and (name := self._changed(settings, command.patch)):
            raise SessionError(
                "invalid_value", f"{name} is fixed once audio has been sent.", param=name
            )
        if self._lease is None or settings.open_params() != self.settings.open_params():
            await self._open(settings)
        self.settings = settings
        for substitution in command.substitutions:
            self.substitutions[substitution.field] = substitution
        self.start()
        self._emit(SessionUpdated(settings=settings, substitutions=self._substituted()))

    def _changed(self, settings: Settings, patch: SettingsPatch) -> str | None:
        for name in _FIXED_BY_FIRST_FRAME:
            if getattr(patch, name) is not UNSET and getattr(settings, name) != getattr(
                self.settings, name
            ):
                return name
        return None

    async def _open(self, settings: Settings) -> None:
        """Takes a slot prefilled for `settings`, in place of one that was taken before."""
        if self._lease is not None:
            lease, self._lease, self.state = self._lease, None, State.NEW
            await self._runtime.release(lease)
        lease = await self._runtime.open(self, settings.open_params())
        if self.state is not State.NEW:
            await self._runtime.release(lease)
            return
        self._lease = lease
        self.state = State.LIVE

    async def _feed(self, pcm: Pcm) -> None:
        """Hands a frame to the engine, as soon as there is room for it."""
        while self.in_flight >= self._max_in_flight and self.state is not State.CLOSED:
            self._returned.clear()
            await self._returned.wait()
        if self._lease is None or self.state is State.CLOSED:
            return
        self._fed_at.append(self._runtime.clock.now())
        self._runtime.feed(Frame(self._lease.id, self.fence.epoch, self._fed, pcm))
        self._fed += 1

    def _barge_in(self, command: BargeIn) -> None:
        """Moves the epoch: what was made before is dropped wherever it is. The model hears the
        user anyway, so its stream goes on.
        """
        response = self.fence.response
        if response is None or command.response_id not in (None, response):
            if command.required:
                raise SessionError(
                    "response_cancel_not_active",
                    "There is no such response in progress.",
                    param="response_id" if command.response_id else None,
                )
            return
        self.fence = self.fence.barge_in()
        self._runtime.metrics.flushed_frames += self.outbox.flush(self.fence)
        self._emit(
            OverlapDecided(
                policy=self.settings.overlap_policy, action="barge_in", reason="client_request"
            )
        )

    # --- life -------------------------------------------------------------------------------

    def _begin_response(self) -> None:
        response = new_id("resp")
        self.fence = self.fence.respond(response)
        self._emit(ResponseCreated(response_id=response))

    def _end_response(self, status: ResponseStatus) -> None:
        if self.fence.response is not None:
            self._emit(
                ResponseDone(
                    response_id=self.fence.response,
                    status=status,
                    transcript="".join(self._transcript),
                    frames=self._frames_out,
                )
            )

    def _start_finishing(self, reason: str, *, drain: bool) -> asyncio.Task[None]:
        if self._finishing is None:
            self.state = State.CLOSING if drain else State.CLOSED
            self._finishing = self._runtime.spawn(
                self._finish(reason, drain=drain), f"finish-{self.id}"
            )
        elif not drain:
            self.state = State.CLOSED
        self._returned.set()
        return self._finishing

    async def _finish(self, reason: str, *, drain: bool) -> None:
        try:
            if drain and self._lease is not None:
                async with asyncio.timeout(self._runtime.session_drain_s):
                    await self._drain()
        except TimeoutError:
            logger.warning("session %s: %d outputs didn't come", self.id, self.in_flight)
        finally:
            whole = drain and self.state is State.CLOSING
            self.state = State.CLOSED
            if self._lease is not None:
                lease, self._lease = self._lease, None
                await self._runtime.release(lease)
            self._end_response("completed" if whole else "failed")
            self._emit(SessionClosed(reason=reason))
            self.outbox.close()
            self._count(reason)
            self._runtime.forget(self)

    async def _drain(self) -> None:
        """Steps what the caller had sent, the padded tail included, and waits for the outputs."""
        for pcm in self._input.flush():
            await self._feed(pcm)
        while self._fed_at and self.state is State.CLOSING:
            self._returned.clear()
            await self._returned.wait()

    def _count(self, reason: str) -> None:
        metrics = self._runtime.metrics
        metrics.sessions_closed[reason] += 1
        metrics.dropped_frames += self.outbox.dropped_audio
        metrics.padded_samples += self._input.padded_samples

    def _substituted(self) -> tuple[Substitution, ...]:
        return tuple(self.substitutions.values())

    def _emit(self, event: Event) -> None:
        """Queues an event; a reader that doesn't read loses audio, then its connection."""
        try:
            self.outbox.put(event)
        except OutboxOverflow:
            self._cut()

    def _cut(self) -> None:
        if not self.broken.is_set():
            self._runtime.metrics.slow_readers += 1
            self.broken.set()
            self.outbox.close()
            self._start_finishing("slow_reader", drain=False)
