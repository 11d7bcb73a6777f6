"""Everything here reaches into aiortc's and aioice's private parts, and nothing else does.

- Its audio jitter buffer always holds 80 ms and after one loss 280 ms for good (aiortc issue 543);
  packets are taken before it, and its decoder stays idle.
- Its queue of pictures to decode has no bound; ours does.
- Signs of life (any datagram), and what the caller has acknowledged, can be seen nowhere else.
- A `close` during the handshake leaves its task behind, and one that checks consent for ever; a
  `close` that hangs leaves sockets and threads. They can be ended from here.

Written against aiortc 1.16 and checked at import.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any, Final

import aiortc
from aioice.ice import Connection
from aiortc import RTCPeerConnection, RTCRtpReceiver
from aiortc.exceptions import InvalidStateError
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.rtp import RtpPacket

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


def take_packets(receiver: RTCRtpReceiver, take: Callable[[RtpPacket], None]) -> None:
    """Has every RTP packet of a known payload type handed over as it comes, in any order."""
    assert hasattr(receiver, _JITTER_BUFFER)
    setattr(receiver, _JITTER_BUFFER, _PassThrough(take))


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

    def __init__(self, take: Callable[[RtpPacket], None]) -> None:
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
