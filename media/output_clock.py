"""Frames to a sink that consumes them in real time, such as an RTP sender.

Pure on a clock that is passed in: frame k of the sink is due at start + k * frame_size /
sample_rate, whatever came late before it.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from media.formats import Pcm


class OutputClock:
    """Paces one stream of frames; stands in for what is late and bounds what waits."""

    def __init__(self, frame_size: int, sample_rate: int, *, max_backlog_frames: int = 25) -> None:
        """Frames of `frame_size` samples at `sample_rate` Hz; at most so many of them wait."""
        if max_backlog_frames < 1:
            raise ValueError(f"max_backlog_frames {max_backlog_frames} is not positive")
        self.frames_in = 0
        self.frames_out = 0
        """Frames given, concealment included."""
        self.concealed = 0
        """Frames of silence in place of one that was not there in time."""
        self.dropped = 0
        """Frames over the backlog, the oldest first."""
        self.flushed = 0
        """Frames taken back by `flush`."""
        self.skipped = 0
        """Deadlines nobody asked for in time."""
        self._frame_size = frame_size
        self._sample_rate = sample_rate
        self._max_backlog = max_backlog_frames
        self._waiting: deque[Pcm] = deque()
        self._silence = np.zeros(frame_size, np.float32)
        self._silence.setflags(write=False)
        self._start: float | None = None
        self._frame = 0  # the timeline's next frame

    @property
    def backlog(self) -> int:
        """Frames that wait."""
        return len(self._waiting)

    @property
    def next_deadline(self) -> float | None:
        """When the next frame is due; None before the first."""
        return None if self._start is None else self._deadline(self._start, self._frame)

    def start(self, now: float) -> None:
        """Begins the timeline now; without it, the first frame does."""
        if self._start is None:
            self._start = now

    def put(self, frame: Pcm, now: float) -> None:
        """Takes a frame [frame_size]."""
        if len(frame) != self._frame_size:
            raise ValueError(f"a frame of {len(frame)} samples, not {self._frame_size}")
        self.start(now)
        self.frames_in += 1
        if len(self._waiting) == self._max_backlog:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(frame)

    def due(self, now: float) -> list[Pcm]:
        """The frames whose deadline has passed, silence where there is none.

        A caller that was away for longer than the backlog could cover gets that much, and the
        deadlines before it are skipped.
        """
        if self._start is None or now < self._deadline(self._start, self._frame):
            return []
        elapsed = (now - self._start) * self._sample_rate / self._frame_size
        count = max(1, math.floor(elapsed) + 1 - self._frame)
        surplus = max(0, count - self._max_backlog)
        self.skipped += surplus
        self._frame += count
        frames = [self._next() for _ in range(count - surplus)]
        self.frames_out += len(frames)
        return frames

    def flush(self) -> int:
        """Takes back what waits, for a barge-in; gives how many frames that was."""
        count = len(self._waiting)
        self._waiting.clear()
        self.flushed += count
        return count

    def _next(self) -> Pcm:
        if self._waiting:
            return self._waiting.popleft()
        self.concealed += 1
        return self._silence

    def _deadline(self, start: float, frame: int) -> float:
        return start + frame * self._frame_size / self._sample_rate
