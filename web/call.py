"""One WebRTC call and its session: the caller's audio down, the agent's up, events beside them.

The peer (`media.rtc`) keeps the time: it gives a frame every 80 ms whatever the network does, and
sends the agent's audio on deadlines of its own. So nothing here waits for a clock. Two tasks, as
on a socket: one listens to the peer, one reads the session's outbox; whichever ends first ends
the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import ExitStack
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from duplex.commands import AckEvent, AppendAudio, AppendPcm, ClearOutput, Command, UpdateSession
from duplex.errors import SessionError, internal_error
from duplex.events import (
    Event,
    OutputAudio,
    OutputCleared,
    OutputStarted,
    OutputStopped,
    ResponseDone,
)
from duplex.session import Session
from duplex.settings import Substitution
from duplex.wire.fitting import fit
from duplex.wire.realtime import RealtimeWire
from media.framing import Framer
from media.opus import CODED_RATE, PACKET_SAMPLES
from media.resample import Resampler
from media.rtc.audio_input import SAMPLE_RATE
from media.rtc.channel import MAX_MESSAGE_BYTES
from media.rtc.errors import ChannelFull, ChannelNotOpen
from media.rtc.events import (
    AudioFrame,
    ChannelClosed,
    ChannelOpened,
    CloseReason,
    MessageReceived,
)
from media.rtc.peer import Peer
from web.context import Context
from web.limits import ControlLimit
from web.message_rate import MessageRate

logger = logging.getLogger(__name__)

MAX_EARLY: Final = 256
"""Messages that may wait for the caller to open its events channel."""


class Call:
    """Carries one session over one peer until either ends."""

    def __init__(
        self, context: Context, peer: Peer, session: Session, wire: RealtimeWire, place: ExitStack
    ) -> None:
        """`place` is given back at the end."""
        self._context = context
        self._peer = peer
        self._session = session
        self._wire = wire
        self._place = place
        self._clock = context.runtime.clock
        self._rate = MessageRate(context)
        self._control = ControlLimit(context.config.control_rate, self._clock.now())
        self._resampler = Resampler(session.runtime.spec.sample_rate, CODED_RATE)
        self._framer = Framer(PACKET_SAMPLES)
        self._early: deque[str] | None = deque() if "m=application" in peer.answer else None
        """Messages from before the channel; None once it is open, or if there is to be none."""
        self._playing: str | None = None
        """The response whose audio the peer has, as the client was told."""
        self._done = False
        """That response has no more audio to come."""
        self._clearing = False
        """The client has asked for it, and will be answered."""

    async def run(self) -> None:
        """Returns when the peer is gone and the session is over."""
        name, session = self._session.id, self._session
        session.take_back = self._take_back
        session.on_broken = self._hang_up
        session.rate_limits = lambda: self._control.left(self._clock.now())
        listener = asyncio.create_task(self._listen(), name=f"listen-{name}")
        speaker = asyncio.create_task(self._speak(), name=f"speak-{name}")
        try:
            await asyncio.wait({listener, speaker}, return_when=asyncio.FIRST_COMPLETED)
            self._blame(listener)
            self._blame(speaker)
            await session.close("disconnected")
            await asyncio.wait({speaker})
            if not self._peer.closed.done():
                rest = self._peer.stats().output.backlog_s
                await self._clock.sleep_until(self._clock.now() + rest)
        finally:
            listener.cancel()
            speaker.cancel()
            await asyncio.wait({listener, speaker})
            await session.close("disconnected")
            await self._peer.close()
            self._count()
            self._place.close()

    async def hang_up(self) -> None:
        """Ends the call, as if its caller had left; returns when that is done."""
        await self._session.close("client_close")
        await self._peer.closed

    async def _listen(self) -> None:
        """Passes on what the caller says and asks for, until it leaves."""
        session = self._session
        async for event in self._peer:
            match event:
                case AudioFrame():
                    image = None if event.picture is None else event.picture.data
                    append = AppendPcm(pcm=event.pcm, rate=SAMPLE_RATE, image=image)
                    await session.handle(append)
                    self._look_for_the_end()
                case MessageReceived():
                    if not await self._carry_out(event.data):
                        return
                case ChannelOpened():
                    early, self._early = self._early, None
                    for text in early or ():
                        self._send(text)
                case ChannelClosed():
                    self._early = None

    async def _speak(self) -> None:
        """Passes on what the session says, until it is over."""
        while (event := await self._session.outbox.get()) is not None:
            match event:
                case OutputAudio():
                    self._play(event)
                    continue
                case OutputCleared() | OutputStopped():
                    self._playing = None
                case ResponseDone() if event.response_id == self._playing:
                    self._done = True
            self._tell(event)

    def _play(self, event: OutputAudio) -> None:
        response = event.fence.response
        if response is not None and response != self._playing:
            self._playing, self._done = response, False
            self._tell(OutputStarted(response_id=response))
        for piece in self._framer.push(self._resampler.push(event.pcm)):
            self._peer.send_audio(piece)

    def _look_for_the_end(self) -> None:
        """Says that a response has been sent to its end; asked with every frame of the caller's."""
        if self._done and self._playing and not self._peer.stats().output.backlog_s:
            self._done = False
            self._session.emit(OutputStopped(response_id=self._playing))

    def _take_back(self) -> float:
        """Barge-in: what the peer has not sent is never heard."""
        if self._playing is not None and not self._clearing:
            self._session.emit(OutputCleared(response_id=self._playing))
        return 1000 * self._peer.flush()

    def _tell(self, event: Event) -> None:
        """Sends the messages that tell of an event, as soon as there is a channel."""
        for message in self._wire.render(event):
            text = fit(message, MAX_MESSAGE_BYTES).decode()
            if self._early is None:
                self._send(text)
                continue
            if len(self._early) == MAX_EARLY:
                self._early.popleft()
            self._early.append(text)

    def _send(self, text: str) -> None:
        try:
            self._peer.send_message(text)
        except ChannelNotOpen:
            return  # a caller may do without events
        except ChannelFull:
            self._session.count_slow_reader()
            self._hang_up()
            return
        counters = self._context.counters
        counters.messages_out += 1
        counters.bytes_out += len(text)

    async def _carry_out(self, data: str | bytes) -> bool:
        """Carries out one message; False if the client has gone too far."""
        counters = self._context.counters
        counters.messages_in += 1
        counters.bytes_in += len(data)
        if not self._peer.closed.done():  # a flood ends it, and its rest is not waited for
            await self._rate.take(len(data))
        try:
            command = self._admit(data)
        except SessionError as error:
            if error.fatal:
                self._session.abort(error, error.code)
                return False
            self._session.fail(error)
            return True
        self._clearing = isinstance(command, ClearOutput)
        await self._session.handle(command)
        self._clearing = False
        return True

    def _admit(self, data: str | bytes) -> Command:
        """Reads a message. Raises SessionError for a bad one, or one too many."""
        now = self._clock.now()
        try:
            command = self._wire.parse(
                data.encode() if isinstance(data, str) else data, binary=isinstance(data, bytes)
            )
        except SessionError as error:
            self._control.check(error.event_id, now)
            raise
        if isinstance(command, AckEvent):
            return command
        self._control.check(command.event_id, now)
        if isinstance(command, AppendAudio):
            raise SessionError(
                "unknown_event",
                "The audio of a call flows on its media track, not on the events channel.",
                param="type",
                event_id=command.event_id,
            )
        return with_our_clock(command) if isinstance(command, UpdateSession) else command

    def _hang_up(self) -> None:
        """Ends the peer; `run` sees that and does the rest."""
        self._session.runtime.spawn(self._peer.close(), f"hang-up-{self._session.id}")

    def _blame(self, task: asyncio.Task[None]) -> None:
        """A failure of our own ends the session, is logged, and is told without its details."""
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            logger.error("session %s: %s failed", self._session.id, task.get_name(), exc_info=error)
            self._session.abort(internal_error(), "internal_error")

    def _count(self) -> None:
        """Adds what became of the call's media to the server's counters."""
        stats, counters = self._peer.stats(), self._context.counters
        reason = self._peer.closed.result() if self._peer.closed.done() else CloseReason.INTERNAL
        counters.calls_ended[reason] += 1
        counters.call_samples.update(
            input_lost=stats.input.lost_samples,
            input_silence=stats.input.silence_samples,
            input_dropped=stats.input.dropped_samples,
            output_silence=stats.output.silence_samples,
            output_dropped=stats.output.dropped_samples,
            output_flushed=stats.output.flushed_samples,
        )
        counters.call_packets_refused += stats.refused_packets


def with_our_clock(command: UpdateSession) -> UpdateSession:
    """The command without what a call's media decide: its input has the server's clock."""
    if command.patch.input_clock in (UNSET, "server"):
        return command
    note = Substitution("input_clock", "client", "server", "A call's audio comes in real time.")
    return replace(
        command,
        patch=replace(command.patch, input_clock=UNSET),
        substitutions=(*command.substitutions, note),
    )
