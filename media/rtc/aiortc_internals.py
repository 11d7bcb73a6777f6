"""Everything here reaches into aiortc's and aioice's private parts, and nothing else does.

- Its audio jitter buffer always holds 80 ms and after one loss 280 ms for good (aiortc issue 543);
  packets are taken before it, and its decoder stays idle.
- Each packet of audio wakes several of its tasks, both ways, and becomes several objects: a third
  of what a call costs. Ours go straight between the socket and the peer.
- Its queue of pictures to decode has no bound; ours does.
- Signs of life (any datagram), and what the caller has acknowledged, can be seen nowhere else.
- It waits for STUN and TURN servers that don't answer for 5 seconds, which can't be set.
- A `close` during the handshake leaves its task behind, and one that checks consent for ever; a
  `close` that hangs leaves sockets and threads. They can be ended from here.

Written against aiortc 1.16 and checked at import.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import struct
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import aiortc
import pylibsrtp
from aioice.ice import Connection
from aioice.turn import TurnTransport
from aiortc import (
    MediaStreamTrack,
    RTCPeerConnection,
    RTCRtpCodecParameters,
    RTCRtpReceiver,
    RTCRtpTransceiver,
)
from aiortc.codecs import CODECS
from aiortc.exceptions import InvalidStateError
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcdtlstransport import RTCDtlsTransport, State
from aiortc.rtcpeerconnection import find_common_codecs
from aiortc.rtp import HeaderExtensions, RtpPacket, is_rtcp
from aiortc.sdp import MediaDescription, SessionDescription

SUPPORTED: Final = (1, 16)

if tuple(int(part) for part in aiortc.__version__.split(".")[:2]) != SUPPORTED:
    raise ImportError(f"aiortc {aiortc.__version__} is not {SUPPORTED[0]}.{SUPPORTED[1]}")

MAX_PICTURE_SIDE: Final = 2048
"""Larger pictures are not decoded: a few bytes could claim hundreds of megabytes."""

_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"
_DECODER_QUEUE = "_RTCRtpReceiver__decoder_queue"
_STOP_DECODER = "_RTCRtpReceiver__stop_decoder"
_ICE_TRANSPORTS = "_RTCPeerConnection__iceTransports"
_CONNECT = "_RTCPeerConnection__connect"
_CODECS = "_RTCRtpReceiver__codecs"
_STREAMS = "_RTCRtpReceiver__remote_streams"
_EXTENSIONS = "_RTCRtpSender__rtp_header_extensions_map"
_HANDLERS = ("_handle_rtp_data", "_handle_rtcp_data")
_PARSE = SessionDescription.parse.__code__
_MID = "_RTCRtpSender__mid"
_REPORT = tuple(
    f"_RTCRtpSender__{name}"
    for name in ("ntp_timestamp", "rtp_timestamp", "packet_count", "octet_count")
)

_HEADER = struct.Struct("!BBHLL")
_NTP_EPOCH_S: Final = 2_208_988_800  # from 1900 to 1970


class Packet(Protocol):
    """An RTP packet that came, ours or aiortc's."""

    sequence_number: int
    timestamp: int
    ssrc: int
    payload: bytes


@dataclass(slots=True)
class _Received:
    sequence_number: int
    timestamp: int
    ssrc: int
    payload: bytes


def take_packets(receiver: RTCRtpReceiver, take: Callable[[Packet], None]) -> None:
    """Has every RTP packet of a known payload type handed over as it comes, in any order.

    The first one of a stream goes the long way, on which aiortc gets to know the stream; reports
    tell the sender of all.
    """
    assert hasattr(receiver, _JITTER_BUFFER)
    setattr(receiver, _JITTER_BUFFER, _PassThrough(take))
    codecs, streams = getattr(receiver, _CODECS), getattr(receiver, _STREAMS)
    transport = receiver.transport
    connection: Connection = transport.transport._connection
    long_way = connection.data_received

    def on_data(data: bytes, component: int) -> None:
        if len(data) < 12 or data[0] >> 6 != 2 or data[1] & 0x7F not in codecs:
            long_way(data, component)
            return
        first, _, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
        stream, srtp = streams.get(ssrc), transport._rx_srtp
        if stream is None or srtp is None or transport._state is not State.CONNECTED:
            long_way(data, component)
            return
        try:
            payload = _payload(first, srtp.unprotect(data))
        except (pylibsrtp.Error, IndexError):  # forged, repeated or broken
            return
        packet = _Received(sequence, timestamp, ssrc, payload)
        stream.add(packet)
        take(packet)

    setattr(connection, "data_received", on_data)  # noqa: B010 (mypy: a method)


def bound_sources(connection: RTCPeerConnection, limit: int, refused: Callable[[], None]) -> None:
    """Drops what comes from more than `limit` sources (SSRCs), RTP and RTCP, before it costs
    anything, and calls `refused` for each packet. Only a source whose packet was authentic counts.
    Each of them has state in SRTP, in aiortc's statistics and in every report. To be called when
    the other side's description is set.
    """
    transports = {transceiver.receiver.transport for transceiver in connection.getTransceivers()}
    if connection.sctp is not None:
        transports.add(connection.sctp.transport)
    for transport in transports:
        _bound(transport, limit, refused)


def _bound(transport: RTCDtlsTransport, limit: int, refused: Callable[[], None]) -> None:
    known: set[int] = set()
    ice: Connection = transport.transport._connection
    data_received = ice.data_received

    def admitted(data: bytes) -> bool:
        if len(known) < limit or len(data) < 12 or _source(data) in known:
            return True
        refused()
        return False

    def on_data(data: bytes, component: int) -> None:
        if data[:1] < b"\x80" or admitted(data):  # DTLS begins below (RFC 7983)
            data_received(data, component)

    def counted(handle: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
        async def handle_new(data: bytes, **rest: Any) -> None:
            if admitted(data):  # it has waited since `on_data` saw it
                known.add(_source(data))
                await handle(data, **rest)

        return handle_new

    setattr(ice, "data_received", on_data)  # noqa: B010 (mypy: a method)
    for name in _HANDLERS:
        setattr(transport, name, counted(getattr(transport, name)))


def _source(data: bytes) -> int:
    """The SSRC of a packet of RTP or RTCP, protected or not."""
    start = 4 if is_rtcp(data) else 8
    return int.from_bytes(data[start : start + 4])


def _payload(first: int, packet: bytes) -> bytes:
    """What follows an RTP header that begins with the byte `first` (RFC 3550, section 5.1).

    Raises IndexError for a packet that is too short for what its header says.
    """
    start, end = 12 + 4 * (first & 0x0F), len(packet)
    if first & 0x10:
        start += 4 + 4 * (packet[start + 2] << 8 | packet[start + 3])
    if first & 0x20:
        end -= packet[-1]
    if start > end:
        raise IndexError("a header longer than its packet")
    return packet[start:end]


class Unsent(MediaStreamTrack):
    """Stands where aiortc expects the track that it sends, and has nothing for it."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        """Set when packets may be sent."""

    async def recv(self) -> Any:
        """Never returns."""
        self.begun.set()
        await asyncio.get_running_loop().create_future()
        raise MediaStreamError


class RtpSender:
    """Sends the packets of a transceiver whose track is an `Unsent`; reports tell of them."""

    def __init__(self, transceiver: RTCRtpTransceiver) -> None:
        """To be made when the track has begun."""
        sender = self._sender = transceiver.sender
        self._transport = sender.transport
        self._connection: Connection = self._transport.transport._connection
        mid = HeaderExtensions(mid=getattr(sender, _MID))
        profile, value = getattr(sender, _EXTENSIONS).set(mid)
        self._extension = struct.pack("!HH", profile, len(value) >> 2) + value if value else b""
        self._first = 0x90 if value else 0x80
        payload_type = transceiver._codecs[0].payloadType
        assert payload_type is not None
        self._type = 0x80 | payload_type
        self._sequence = secrets.randbits(16)
        self._origin = secrets.randbits(32)
        self._packets = self._bytes = 0

    def send(self, payload: bytes, timestamp: int) -> None:
        """Sends a packet, if there is a way to send it on. `timestamp` counts from anywhere."""
        pair = self._connection._nominated.get(1)
        if self._transport._state is not State.CONNECTED or pair is None:
            return
        way = pair.protocol.transport
        if not isinstance(way, TurnTransport) and way.is_closing():
            return
        timestamp = self._origin + timestamp & 0xFFFFFFFF
        header = _HEADER.pack(
            self._first, self._type, self._sequence, timestamp, self._sender._ssrc
        )
        way.sendto(
            self._transport._tx_srtp.protect(header + self._extension + payload), pair.remote_addr
        )
        self._sequence = self._sequence + 1 & 0xFFFF
        self._packets += 1
        self._bytes += len(payload)
        self._report(timestamp)

    def _report(self, timestamp: int) -> None:
        """What the next sender report says."""
        ntp = int((time.time() + _NTP_EPOCH_S) * (1 << 32))
        said = zip(_REPORT, (ntp, timestamp, self._packets, self._bytes), strict=True)
        vars(self._sender).update(said)


def bound_pictures(receiver: RTCRtpReceiver, limit: int) -> None:
    """Drops VP8 frames when `limit` of them wait to be decoded, up to the next key frame.

    Frames of a side over `MAX_PICTURE_SIDE` are dropped as well.
    """
    inner = getattr(receiver, _JITTER_BUFFER)
    waiting = getattr(receiver, _DECODER_QUEUE)
    setattr(receiver, _JITTER_BUFFER, _PictureGate(inner, waiting, limit))


def watch(receiver: RTCRtpReceiver, heard: Callable[[], None]) -> None:
    """Calls `heard` for every datagram from the other side: media, reports, data, ICE checks."""
    connection: Connection = receiver.transport.transport._connection
    data_received, request_received = connection.data_received, connection.request_received

    def on_data(data: bytes, component: int) -> None:
        heard()
        data_received(data, component)

    def on_request(*args: Any) -> None:
        heard()
        request_received(*args)

    setattr(connection, "data_received", on_data)  # noqa: B010 (mypy: a method)
    setattr(connection, "request_received", on_request)  # noqa: B010


def common_codecs(section: MediaDescription) -> list[RTCRtpCodecParameters]:
    """What an offered section of audio or video can be answered with."""
    return find_common_codecs(CODECS[section.kind], section.rtp.codecs)


def line_at_fault(error: BaseException) -> str:
    """Where `SessionDescription.parse` was when it raised this, which may be anything; empty if it
    was elsewhere."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is _PARSE:
            line, section = frame.f_locals.get("line", ""), frame.f_locals.get("media_lines")
            return str(line if section is None or line in section else section[0])
    return ""


def limit_gathering(connection: RTCPeerConnection, timeout_s: float) -> None:
    """Has the connection wait no longer than this for STUN and TURN servers, all at once. To be
    called when the other side's description is set, and before its own is.
    """
    for transport in getattr(connection, _ICE_TRANSPORTS):
        ice: Connection = transport._connection
        gather: Callable[..., Any] = ice.get_component_candidates  # mypy: its seconds are whole
        setattr(ice, "get_component_candidates", partial(gather, timeout=timeout_s))  # noqa: B010


def all_delivered(connection: RTCPeerConnection) -> bool:
    """Whether the caller has acknowledged every message. Each acknowledgement is a datagram."""
    sctp = connection.sctp
    return sctp is None or not (
        sctp._data_channel_queue or sctp._outbound_queue or sctp._sent_queue
    )


class Handshake:
    """Knows the tasks in which a connection's handshake runs."""

    def __init__(self, connection: RTCPeerConnection) -> None:
        """To be made before the first description is set."""
        self._connection = connection
        self._connect = getattr(connection, _CONNECT)
        self._tasks: set[asyncio.Task[None]] = set()
        setattr(connection, _CONNECT, self._tracked)

    async def settle(self) -> None:
        """After the connection's `close`: returns when nothing of the handshake is left."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if consents := self._consents():
            self.cancel()
            await asyncio.wait(consents)

    def cancel(self) -> None:
        """Ends what is left, without waiting for it."""
        for task in [*self._tasks, *self._consents()]:
            task.cancel()

    def _consents(self) -> list[asyncio.Task[None]]:
        tasks: list[asyncio.Task[None] | None] = [
            transport._connection._query_consent_task
            for transport in getattr(self._connection, _ICE_TRANSPORTS)
        ]
        return [task for task in tasks if task is not None and not task.done()]

    async def _tracked(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect()
        except InvalidStateError:  # it was closed under its hands
            if self._connection.signalingState != "closed":
                raise
        finally:
            self._tasks.discard(task)


def abandon(connection: RTCPeerConnection) -> None:
    """Ends sockets and threads of a connection whose `close` did not return."""
    for transport in getattr(connection, _ICE_TRANSPORTS):
        for protocol in transport._connection._protocols:
            protocol.transport.abort()
    for receiver in connection.getReceivers():
        getattr(receiver, _STOP_DECODER)()


class _PassThrough:
    """Stands where aiortc expects its jitter buffer, and never has a frame for its decoder."""

    def __init__(self, take: Callable[[Packet], None]) -> None:
        self._take = take

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        self._take(packet)
        return False, None


class _PictureGate:
    """aiortc's video jitter buffer with a bound on what comes after it."""

    def __init__(self, inner: JitterBuffer, waiting: queue.Queue[object], limit: int) -> None:
        self._inner = inner
        self._waiting = waiting
        self._limit = limit
        self._until_key_frame = False

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        ask_for_key_frame, frame = self._inner.add(packet)
        if frame is None:
            return ask_for_key_frame, None
        if self._waiting.qsize() >= self._limit:
            self._until_key_frame = True
            return True, None
        key_frame_side = _key_frame_side(frame.data)
        if key_frame_side is not None:
            self._until_key_frame = key_frame_side > MAX_PICTURE_SIDE
        return ask_for_key_frame, None if self._until_key_frame else frame


def _key_frame_side(data: bytes) -> int | None:
    """The larger side of a VP8 key frame; None for other frames (RFC 6386, section 9.1)."""
    if len(data) < 10 or data[0] & 1:
        return None
    width = int.from_bytes(data[6:8], "little") & 0x3FFF
    height = int.from_bytes(data[8:10], "little") & 0x3FFF
    return max(width, height)
