"""A session: one conversation, from its first settings to the return of its slot.

Commands come in by `handle`, in order, and wait there for room (that wait is the backpressure of
client-clocked input: nobody reads the socket meanwhile). Outputs come in by `deliver`, become
responses (`duplex.responses`) and leave as events through the outbox. The caller's audio is in
`duplex.intake`, what the session does about the user's speech in `duplex.user`, what the client
can ask for in `duplex.requests`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from duplex.commands import AppendAudio, AppendPcm, Command
from duplex.conversation import Conversation
from duplex.errors import SessionError, internal_error
from duplex.events import (
    Event,
    Failed,
    RateLimit,
    SessionClosed,
    SessionCreated,
    SessionExpired,
)
from duplex.fence import Fence
from duplex.intake import Intake
from duplex.ledger import Ledger
from duplex.outbox import Outbox, OutboxOverflow
from duplex.requests import carry_out
from duplex.responses import OneResponse, Responses, UtteranceResponses
from duplex.user import User
from engine.api import Lease, StepOutput

if TYPE_CHECKING:
    from duplex.runtime import Runtime
    from duplex.settings import Settings, Substitution

logger = logging.getLogger(__name__)

_OUTBOX_FRAMES = 64
_LOST_FRAMES = 125
"""At 80 ms a frame: a reader that loses ten seconds in a row is gone."""
_AGENT_SILENCE_S = 0.64
"""A pause of the agent's that ends its utterance."""
_PATIENCE_S = 8.0
"""How long a response that a client asked for waits for the agent to speak."""


class State(enum.Enum):
    """A session's life. It only goes forward."""

    NEW = enum.auto()
    LIVE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class Mode(enum.Enum):
    """How the agent's stream reaches the client."""

    DUPLEX = enum.auto()
    """As it is: one response, a delta for every frame."""
    TURNS = enum.auto()
    """Cut into utterances, for clients that think in turns."""


class Session:
    """One conversation. Its owner reads `outbox` and calls `handle` for one command at a time."""

    def __init__(
        self,
        runtime: Runtime,
        session_id: str,
        settings: Settings,
        mode: Mode = Mode.DUPLEX,
        *,
        paced: bool = False,
    ) -> None:
        """`paced`: its transport gives audio in real time whatever the caller does, silence
        included, so that nobody has to keep time here.
        """
        spec = runtime.spec
        self.id = session_id
        self.mode = mode
        self.settings = settings
        self.state = State.NEW
        self.fence = Fence(session_id)
        self.conversation = Conversation()
        self.ledger = Ledger()
        self._room = asyncio.Event()
        self.outbox = Outbox(
            max_audio=_OUTBOX_FRAMES, max_lost=_LOST_FRAMES, on_room=self._room.set
        )
        self.on_broken: Callable[[], None] = _nothing
        """Called when the connection should be cut: its reader doesn't read."""
        self.take_back: Callable[[], float] = float
        """Has the transport drop what it has not sent of the agent's audio; gives its length in
        milliseconds.
        """
        self.rate_limits: Callable[[], tuple[RateLimit, ...]] = tuple
        """What the connection still lets the client do."""
        self.substitutions: dict[str, Substitution] = {}
        self.resume_token: str | None = None
        """What the client needs to take the session to another socket; None: it can't."""
        self.attachment_generation = 0
        self.runtime = runtime
        self.max_idle_s = settings.idle_timeout_s
        """The server's limit; the client may ask for less."""
        self.frame_ms = 1000 * spec.frame_s
        silence_frames = round(_AGENT_SILENCE_S / spec.frame_s)
        self.responses: Responses = (
            OneResponse(self, silence_frames)
            if mode is Mode.DUPLEX
            else UtteranceResponses(self, silence_frames, round(_PATIENCE_S / spec.frame_s))
        )
        self.lease: Lease | None = None
        self.intake = Intake(self, self._room, paced=paced)
        self.user = User(self)
        self._last_command = runtime.clock.now()
        self._finishing: asyncio.Task[None] | None = None
        self._announced = False
        self._unread = False

    @property
    def live(self) -> bool:
        """Whether frames go down and come up."""
        return self.state is State.LIVE

    @property
    def over(self) -> bool:
        """Whether nothing goes down or comes up any more."""
        return self.state is State.CLOSED

    @property
    def opened(self) -> bool:
        """Whether the session has a slot."""
        return self.lease is not None

    @property
    def in_flight(self) -> int:
        """Frames fed whose outputs haven't come."""
        return self.intake.in_flight

    @property
    def fed(self) -> int:
        """Frames handed to the engine."""
        return self.intake.fed

    @property
    def begun(self) -> bool:
        """Whether somebody has said something; before, the slot can be prefilled anew."""
        return self.user.begun or self.responses.begun

    def start(self) -> None:
        """Says that the session exists, once: at once, or else when it has its slot."""
        if not self._announced:
            self._announced = True
            self.emit(
                SessionCreated(
                    settings=self.settings,
                    substitutions=tuple(self.substitutions.values()),
                    resume_token=self.resume_token,
                    attachment_generation=self.attachment_generation,
                )
            )

    async def handle(self, command: Command) -> None:
        """Carries out one command; what goes wrong becomes an event."""
        self._last_command = self.runtime.clock.now()
        if self.state in (State.CLOSING, State.CLOSED):
            return
        try:
            if type(command) is AppendAudio or type(command) is AppendPcm:
                if self.lease is None:
                    await self.ensure_open()
                await self.intake.append(command)
            else:
                await carry_out(self, command)
        except SessionError as error:
            error.event_id = command.event_id
            if error.fatal:
                self.abort(error, error.code)
            else:
                self.fail(error)

    def fail(self, error: SessionError) -> None:
        """Tells the client of an error that the session survives."""
        self.runtime.metrics.errors[error.code] += 1
        self.emit(Failed(error=error))

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
        metrics = self.runtime.metrics
        latency = self.intake.took(now)
        metrics.frame_s.observe(latency)
        if latency > self.frame_ms / 1000:
            metrics.late_frames += 1
        if output.error:
            logger.error("session %s: the engine ended its lease: %s", self.id, output.error)
            self.abort(internal_error(), "internal_error")
            return
        if output.pcm is None:
            return
        stale = not self.fence.admits(output.epoch)
        if stale:
            metrics.stale_frames += 1
        else:
            metrics.frames_out += 1
        self.responses.hear(output, stale=stale)

    def interrupt(self, reason: str) -> None:
        """Barge-in: moves the epoch and drops what was made before it, wherever it is."""
        self.fence = self.fence.barge_in()
        flushed = self.outbox.flush(self.fence)
        self.runtime.metrics.flushed_frames += flushed.total()
        for response_id, frames in flushed.items():
            self.ledger.take_back(response_id, frames * self.frame_ms)
        self.responses.interrupt(reason, self.take_back())

    def turn_ended(self) -> None:
        """The user's turn was committed."""
        self.fence = self.fence.next_turn()
        self.ledger.next_turn(self.fence.turn, self.fence.response)

    def expire_if_idle(self, now: float) -> None:
        """Ends the session if its client has said nothing for longer than it allowed itself."""
        limit = self.settings.idle_timeout_s
        if limit is not None and self.live and now - self._last_command > limit:
            self.emit(SessionExpired(idle_timeout_s=limit))
            self._start_finishing("idle_timeout", drain=False)

    def emit(self, event: Event) -> None:
        """Queues an event; a reader that doesn't read loses audio, then its connection."""
        try:
            self.outbox.put(event)
        except OutboxOverflow:
            self.count_slow_reader()
            self.outbox.close()
            self._start_finishing("slow_reader", drain=False)
            self.on_broken()

    def count_slow_reader(self) -> None:
        """Its reader didn't read, whoever noticed; a session counts once."""
        if not self._unread:
            self._unread = True
            self.runtime.metrics.slow_readers += 1

    # --- the slot ---------------------------------------------------------------------------

    async def open(self, settings: Settings) -> None:
        """Takes a slot prefilled for `settings`, in place of one that was taken before.

        Raises SessionError; the session has no slot then.
        """
        if self.lease is not None:
            lease, self.lease, self.state = self.lease, None, State.NEW
            self.intake.restart()
            await self.runtime.release(lease)
        lease = await self.runtime.open(self, settings.open_params())
        if self.state is not State.NEW:
            await self.runtime.release(lease)
            return
        self.lease = lease
        self.state = State.LIVE

    async def ensure_open(self) -> None:
        """Takes a slot if there is none yet. Raises SessionError."""
        if self.lease is None:
            await self.open(self.settings)
            self.start()

    def apply(self, settings: Settings) -> None:
        """Puts settings in force."""
        clock_changed = settings.input_clock != self.settings.input_clock
        self.settings = settings
        self.user.configure()
        if clock_changed:
            self.intake.renew()
        self.intake.keep_time()

    # --- the end ----------------------------------------------------------------------------

    def _start_finishing(self, reason: str, *, drain: bool) -> asyncio.Task[None]:
        if self._finishing is None:
            self.state = State.CLOSING if drain else State.CLOSED
            self._finishing = self.runtime.spawn(
                self._finish(reason, drain=drain), f"finish-{self.id}"
            )
        elif not drain:
            self.state = State.CLOSED
        self._room.set()
        return self._finishing

    async def _finish(self, reason: str, *, drain: bool) -> None:
        self.intake.stop_clock()
        try:
            if drain and self.lease is not None:
                async with asyncio.timeout(self.runtime.session_drain_s):
                    await self.intake.drain()
        except TimeoutError:
            logger.warning("session %s: %d outputs didn't come", self.id, self.in_flight)
        finally:
            whole = self.state is State.CLOSING
            self.state = State.CLOSED
            self._room.set()
            self.intake.close()
            if self.lease is not None:
                lease, self.lease = self.lease, None
                await self.runtime.release(lease)
            self.responses.finish("completed" if whole else "failed", reason)
            self.emit(SessionClosed(reason=reason))
            self.outbox.close()
            metrics = self.runtime.metrics
            metrics.sessions_closed[reason] += 1
            metrics.dropped_frames += self.outbox.dropped_audio
            metrics.padded_samples += self.intake.padded_samples
            self.runtime.forget(self)


def _nothing() -> None:
    pass
