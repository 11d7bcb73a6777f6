"""One caller over WebRTC, from the offer to the goodbye. Knows nothing of sessions or HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Final

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCRtpTransceiver,
    RTCSessionDescription,
)
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError

from media.clock import Clock, SystemClock
from media.formats import Pcm
from media.rtc.aiortc_internals import life, negotiation, packets, pictures, sources
from media.rtc.alarm import Alarm
from media.rtc.audio_input import AudioInput, InputStats
from media.rtc.audio_output import AudioOutput, OutputStats
from media.rtc.channel import EventsChannel
from media.rtc.errors import BadOffer
from media.rtc.events import AudioFrame, Closed, CloseReason, Event, PeerState, StateChanged
from media.rtc.mailbox import Mailbox
from media.rtc.offer import Offer, parse_offer
from media.rtc.settings import PeerSettings
from media.rtc.video_input import VideoInput

logger = logging.getLogger(__name__)

MAX_UNDECODED_PICTURES: Final = 8
MAX_SOURCES: Final = 16
"""Sources of RTP and RTCP that a peer may have in its life: sound, pictures, their repair, each
anew after a few restarts."""
MAX_UNREAD_PACKETS: Final = 16
"""So many packets may wait in the socket of a loop that is late, and are still not lost."""

_DRAIN_S = 0.3  # for messages that were sent just before the goodbye
_DEFAULTS = PeerSettings()
_REFUSALS = (InternalError, InvalidAccessError, InvalidStateError, OperationError)
"""What aiortc raises, with a text, for a description that it can't take."""
_UNFIT = "its sections, groups and attributes don't fit together"


@dataclass(frozen=True, slots=True)
class PeerStats:
    """What became of a peer's media."""

    input: InputStats
    output: OutputStats
    unread_frames: int
    """Frames of audio that the owner did not read in time."""
    pictures: int
    """Video frames decoded."""
    refused_packets: int
    """Packets of sources beyond the first `MAX_SOURCES`."""


class Peer:
    """Made by `accept`; gives its events when iterated; ends with `close` or by itself.

    `closed` is done, with the reason, when everything of the peer is gone: tasks, threads,
    sockets. All methods belong to the event loop that made it.
    """

    def __init__(self, offer: Offer, settings: PeerSettings, clock: Clock) -> None:
        self.state = PeerState.CONNECTING
        self.closed: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()
        self.answer = ""
        """The SDP answer, from `accept` on."""
        self._settings = settings
        self._clock = clock
        self._heard = clock.now()
        self._refused = 0
        self._datagram = asyncio.Event()
        self._mailbox = Mailbox()
        self._input = AudioInput()
        self._frames = 0
        self._output = AudioOutput(clock, fec=offer.takes_fec)
        self._unsent = packets.Unsent()
        self._channel = EventsChannel(self._emit)
        self._video: VideoInput | None = None
        self._alarm = Alarm(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._teardown_task: asyncio.Task[None] | None = None
        servers = [
            RTCIceServer(list(server.urls), server.username, server.credential)
            for server in settings.ice_servers
        ]
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._handshake = life.Handshake(self._connection)

    @classmethod
    async def accept(
        cls, offer: str, settings: PeerSettings = _DEFAULTS, clock: Clock | None = None
    ) -> Peer:
        """Answers an SDP offer. Raises BadOffer; nothing is left open then.

        Without ICE servers this opens the host's sockets and waits for nothing else; with some it
        waits for `gather_timeout_s` at most.
        """
        parsed = parse_offer(offer)
        peer = cls(parsed, settings, clock or SystemClock())
        negotiation = asyncio.create_task(peer._negotiate(parsed))
        try:
            await asyncio.shield(negotiation)
        except asyncio.CancelledError:
            # Sockets that are just being opened can be closed once they are known.
            negotiation.add_done_callback(peer._on_unwanted)
            raise
        except Exception:
            await peer.close()
            raise
        peer._spawn(peer._run())
        return peer

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events in order, `Closed` last."""
        while (event := await self._mailbox.get()) is not None:
            yield event

    def send_audio(self, pcm: Pcm) -> None:
        """Takes samples [n] at 24 kHz, n a multiple of 480; what waits too long is dropped.

        Raises ValueError for another n.
        """
        self._output.send(pcm)

    def flush(self) -> float:
        """Takes back audio that is not sent yet, for a barge-in; gives its length in seconds."""
        return self._output.flush()

    def send_message(self, text: str) -> None:
        """Sends on the events channel.

        Raises MessageTooLarge (over 16 KiB of UTF-8), ChannelNotOpen or ChannelFull; nothing was
        sent then.
        """
        self._channel.send(text)

    def stats(self) -> PeerStats:
        """What has happened so far."""
        return PeerStats(
            input=self._input.stats(),
            output=self._output.stats(),
            unread_frames=self._mailbox.dropped_frames,
            pictures=self._video.received if self._video else 0,
            refused_packets=self._refused,
        )

    async def close(self) -> None:
        """Says goodbye and returns when everything is gone. May be called in any state, often."""
        self._finish(CloseReason.LOCAL)
        await asyncio.shield(self.closed)

    async def _negotiate(self, offer: Offer) -> None:
        connection = self._connection
        connection.on("connectionstatechange", self._on_connection_state)
        connection.on("datachannel", self._on_channel)
        audio, video = self._add_transceivers(offer)
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer.sdp, "offer"))
            answer = await connection.createAnswer()
        except _REFUSALS as error:
            raise BadOffer("sdp", str(error) or _UNFIT) from error
        except Exception as error:  # it trusts what it has parsed: of any type
            logger.info("an offer was refused for what it led to", exc_info=error)
            raise BadOffer("sdp", _UNFIT) from error
        packets.take_packets(audio.receiver, self._on_packet)
        sources.bound_sources(connection, MAX_SOURCES, self._on_refused)
        life.watch(audio.receiver, self._on_heard)
        self._spawn(self._send(audio))
        if video is not None and self._settings.pictures is not None and video.track is not None:
            pictures.bound_pictures(video, MAX_UNDECODED_PICTURES)
            self._video = VideoInput(video.track, self._settings.pictures)
            self._spawn(self._video.run())
        negotiation.limit_gathering(connection, self._settings.gather_timeout_s)
        await connection.setLocalDescription(answer)
        self.answer = offer.answered(connection.localDescription.sdp)

    def _add_transceivers(self, offer: Offer) -> tuple[RTCRtpTransceiver, RTCRtpReceiver | None]:
        """One for each media section, so that codecs and directions are ours to choose."""
        first: dict[str, RTCRtpTransceiver] = {}
        for section in offer.sections:
            kind = section.kind
            if kind == "application":
                continue
            unseen = kind == "video" and self._settings.pictures is None
            if kind in first or unseen or not section.spoken:
                self._connection.addTransceiver(kind, "inactive")
                continue
            if kind == "audio":
                transceiver = self._connection.addTransceiver(self._unsent, "sendrecv")
            else:
                transceiver = self._connection.addTransceiver(kind, "recvonly")
            wanted = ("audio/opus", "video/VP8", "video/rtx")
            capabilities = RTCRtpReceiver.getCapabilities(kind)
            assert capabilities is not None
            transceiver.setCodecPreferences(
                [codec for codec in capabilities.codecs if codec.mimeType in wanted]
            )
            first[kind] = transceiver
        video = first.get("video")
        return first["audio"], video.receiver if video else None

    async def _run(self) -> None:
        """Waits for the connection, then for what the input owes, and for signs of life."""
        clock = self._clock
        connect_by = clock.now() + self._settings.connect_timeout_s
        while self.state is PeerState.CONNECTING:
            if clock.now() >= connect_by:
                self._finish(CloseReason.CONNECT_TIMEOUT)
                return
            await self._alarm.wait(connect_by)
        self._heard = clock.now()
        self._input.start(clock.now())
        while self.state is PeerState.CONNECTED:
            now = clock.now()
            vanished = self._heard + self._settings.vanish_after_s
            if now >= vanished:
                self._finish(CloseReason.VANISHED)
                return
            self._give(self._input.due(now))
            deadline = self._input.next_deadline
            assert deadline is not None
            await clock.sleep_until(min(deadline, vanished))
            owed = self._input.next_deadline
            if owed is not None and clock.now() >= owed:
                await self._read_on()

    async def _read_on(self) -> None:
        """Lets the loop read what waits in the socket: packets may have come in time, and the loop
        be late.
        """
        for _ in range(MAX_UNREAD_PACKETS):
            taken = self._input.stats().packets
            # A round of the loop runs what was ready before, and reads one packet or more.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if taken == self._input.stats().packets:
                return

    async def _send(self, audio: RTCRtpTransceiver) -> None:
        """Sends the output's packets from the time when the connection takes them."""
        await self._unsent.begun.wait()
        sender = packets.RtpSender(audio)
        while (packet := await self._output.recv()) is not None:
            sender.send(bytes(packet), packet.pts or 0)

    def _on_packet(self, packet: packets.Packet) -> None:
        try:
            self._give(
                self._input.push(
                    packet.ssrc,
                    packet.sequence_number,
                    packet.timestamp,
                    packet.payload,
                    self._clock.now(),
                )
            )
        except Exception:  # the caller is aiortc's transport, which must not suffer from our faults
            logger.exception("a peer's audio packet was not taken")
            self._finish(CloseReason.INTERNAL)

    def _on_refused(self) -> None:
        self._refused += 1

    def _on_heard(self) -> None:
        self._heard = self._clock.now()
        self._datagram.set()

    def _on_channel(self, channel: RTCDataChannel) -> None:
        self._channel.adopt(channel)

    def _on_connection_state(self) -> None:
        match self._connection.connectionState:
            case "connected":
                self._enter(PeerState.CONNECTED)
            case "failed":
                self._finish(CloseReason.FAILED)
            case "closed":
                self._finish(CloseReason.REMOTE)

    def _enter(self, state: PeerState) -> None:
        if self.state in (state, PeerState.CLOSED):
            return
        self.state = state
        self._emit(StateChanged(state))
        self._alarm.ring()

    def _give(self, frames: list[Pcm]) -> None:
        for pcm in frames:
            picture = self._video.take() if self._video else None
            self._emit(AudioFrame(self._frames, pcm, picture))
            self._frames += 1

    def _emit(self, event: Event) -> None:
        if not self._mailbox.put(event):
            self._finish(CloseReason.OVERFLOW)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a peer's task failed", exc_info=error)
            self._finish(CloseReason.INTERNAL)

    def _on_unwanted(self, negotiation: asyncio.Task[None]) -> None:
        if not negotiation.cancelled() and (error := negotiation.exception()) is not None:
            logger.info("an offer that nobody waits for was bad: %s", error)
        self._finish(CloseReason.LOCAL)

    def _finish(self, reason: CloseReason) -> None:
        """Begins the teardown, once."""
        if self._teardown_task is None:
            self._enter(PeerState.CLOSED)
            self._teardown_task = asyncio.create_task(self._teardown(reason))

    async def _teardown(self, reason: CloseReason) -> None:
        try:
            for task in tuple(self._tasks):
                task.cancel()
            if reason is CloseReason.LOCAL:
                await self._drain()
            self._output.stop()
            await self._close_connection()
        finally:
            self._emit(Closed(reason))
            self.closed.set_result(reason)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not life.all_delivered(self._connection):
                    self._datagram.clear()
                    await self._datagram.wait()
        except TimeoutError:
            logger.info("a peer did not take its last messages")

    async def _close_connection(self) -> None:
        closing = asyncio.ensure_future(self._connection.close())
        try:
            async with asyncio.timeout(self._settings.close_timeout_s):
                await closing
                await self._handshake.settle()
        except Exception as error:  # a timeout, or aiortc's: the peer must be gone either way
            logger.warning(
                "a peer's sockets are aborted: its connection did not close", exc_info=error
            )
            self._handshake.cancel()
            life.abandon(self._connection)
