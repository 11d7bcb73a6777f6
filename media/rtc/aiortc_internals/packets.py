"""RTP packets straight between the socket and the peer, both ways."""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pylibsrtp
from aioice.ice import Connection
from aioice.turn import TurnTransport
from aiortc import MediaStreamTrack, RTCRtpReceiver, RTCRtpTransceiver
from aiortc.jitterbuffer import JitterFrame
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcdtlstransport import State
from aiortc.rtp import HeaderExtensions, RtpPacket

from media.rtc.aiortc_internals import names

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
    assert hasattr(receiver, names.JITTER_BUFFER)
    setattr(receiver, names.JITTER_BUFFER, _PassThrough(take))
    codecs, streams = getattr(receiver, names.CODECS), getattr(receiver, names.STREAMS)
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
        mid = HeaderExtensions(mid=getattr(sender, names.MID))
        profile, value = getattr(sender, names.EXTENSIONS).set(mid)
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
        said = zip(names.REPORT, (ntp, timestamp, self._packets, self._bytes), strict=True)
        vars(self._sender).update(said)


class _PassThrough:
    """Stands where aiortc expects its jitter buffer, and never has a frame for its decoder."""

    def __init__(self, take: Callable[[Packet], None]) -> None:
        self._take = take

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        self._take(packet)
        return False, None


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
