"""Which pictures are decoded, and how many wait for it."""

from __future__ import annotations

import queue
from typing import Final

from aiortc import RTCRtpReceiver
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.rtp import RtpPacket

from media.rtc.aiortc_internals import names

MAX_PICTURE_SIDE: Final = 2048
"""Larger pictures are not decoded: a few bytes could claim hundreds of megabytes."""


def bound_pictures(receiver: RTCRtpReceiver, limit: int) -> None:
    """Drops VP8 frames when `limit` of them wait to be decoded, up to the next key frame.

    Frames of a side over `MAX_PICTURE_SIDE` are dropped as well.
    """
    inner = getattr(receiver, names.JITTER_BUFFER)
    waiting = getattr(receiver, names.DECODER_QUEUE)
    setattr(receiver, names.JITTER_BUFFER, _PictureGate(inner, waiting, limit))


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
