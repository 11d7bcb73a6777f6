"""A caller's video as pictures: the latest one for each unit, encoded off the event loop."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av.video.codeccontext import VideoCodecContext

from media.rtc.events import ImageFormat, Picture


class VideoInput:
    """Reads a decoded track all the time; keeps one picture.

    aiortc decodes in a thread of its own. A picture is encoded only when the one before has been
    taken, so that a caller at 30 frames a second costs no more than the units it speaks in.
    """

    def __init__(self, track: MediaStreamTrack, format: ImageFormat) -> None:
        self.received = 0
        """Frames decoded."""
        self._track = track
        self._format = format
        self._frame: av.VideoFrame | None = None
        self._picture: Picture | None = None
        self._wanted = asyncio.Event()

    def take(self) -> Picture | None:
        """The latest picture; None if there is none since the last call."""
        picture, self._picture = self._picture, None
        if picture is not None:
            self._wanted.set()
        return picture

    async def run(self) -> None:
        """Reads until the track ends."""
        async with asyncio.TaskGroup() as tasks:
            encoding = tasks.create_task(self._encode())
            await self._read()
            encoding.cancel()

    async def _read(self) -> None:
        while True:
            try:
                frame = await self._track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, av.VideoFrame)
            self._frame = frame
            self.received += 1
            if self._picture is None:
                self._wanted.set()

    async def _encode(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            frame, self._frame = self._frame, None
            if frame is not None and self._picture is None:
                self._picture = await asyncio.to_thread(to_picture, frame, self._format)


def to_picture(frame: av.VideoFrame, format: ImageFormat) -> Picture:
    """A decoded frame in the wanted format."""
    timestamp = float((frame.pts or 0) * Fraction(frame.time_base or 0))
    rgb = format is ImageFormat.RGB
    data = frame.to_ndarray(format="rgb24").tobytes() if rgb else _jpeg(frame)
    return Picture(data, format, frame.width, frame.height, timestamp)


def _jpeg(frame: av.VideoFrame) -> bytes:
    codec = av.CodecContext.create("mjpeg", "w")
    assert isinstance(codec, VideoCodecContext)
    codec.width, codec.height = frame.width, frame.height
    codec.pix_fmt = "yuvj420p"
    codec.time_base = Fraction(1, 25)
    codec.options = {"q": "4"}
    packets = [*codec.encode(frame.reformat(format="yuvj420p")), *codec.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
