"""Frames to a sink that consumes them in real time, such as an RTP sender.

Pure on a clock that is passed in: frame k of the sink is due at start + k * frame_size /
sample_rate, whatever came late before it. A frame may be late by a grace and is then sent at
once; after that, silence takes its place, and what the silence added to the delay is taken back
when it shows that frames no longer need it.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from media.formats import Pcm

_ROUNDING = 1e-6  # of a frame: what sums of seconds may be off by


class OutputClock:
    """Paces one stream of frames; stands in for what is late and bounds what waits."""

    def __init__(
        self,
        frame_size: int,
        sample_rate: int,
        *,
        max_backlog_frames: int = 25,
        grace_s: float = 0.0,
        recover_after_s: float | None = None,
    ) -> None:
        """Frames of `frame_size` samples at `sample_rate` Hz; at most so many of them wait.

        `grace_s`: how late a frame may be before silence takes its place. `recover_after_s`: when
        for so long every frame has waited for longer than a frame takes, that much is dropped,
        the quietest first; None never does, for sources that may run ahead.
        """
        if max_backlog_frames < 1:
            raise ValueError(f"max_backlog_frames {max_backlog_frames} is not positive")
        self.frames_in = 0
        self.frames_out = 0
        """Frames given, concealment included."""
        self.concealed = 0
        """Frames of silence in place of one that was not there in time."""
        self.dropped = 0
        """Frames over the backlog, the oldest first."""
        self.recovered = 0
        """Frames dropped to take back delay, the quietest first."""
        self.flushed = 0
        """Frames taken back by `flush`."""
        self.skipped = 0
        """Deadlines nobody asked for in time."""
        self._frame_size = frame_size
        self._sample_rate = sample_rate
        self._frame_s = frame_size / sample_rate
        self._max_backlog = max_backlog_frames
        self._grace_s = grace_s
        self._recover_after_s = recover_after_s
        self._waits: deque[tuple[float, float]] = deque()  # (when put, how long until it is due)
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
        """When the next frame is due, or its silence; None before the first."""
        if self._start is None:
            return None
        grace = 0.0 if self._waiting else self._grace_s
        return self._deadline(self._start, self._frame) + grace

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
        if self._recover_after_s is not None:
            assert self._start is not None
            self._note_wait(self._start, now, self._recover_after_s)
        self._waiting.append(frame)

    def due(self, now: float) -> list[Pcm]:
        """The frames whose deadline has passed, silence where there is none.

        A caller that was away for longer than the backlog could cover gets that much, and the
        deadlines before it are skipped.
        """
        if self._start is None:
            return []
        in_time = self._passed(self._start, now, 0.0)
        count = max(min(in_time, len(self._waiting)), self._passed(self._start, now, self._grace_s))
        if count == 0:
            return []
        if self._recover_after_s is not None:
            self._take_back(now, self._recover_after_s, spare=len(self._waiting) - count)
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
        self._waits.clear()
        self.flushed += count
        return count

    def _next(self) -> Pcm:
        if self._waiting:
            return self._waiting.popleft()
        self.concealed += 1
        return self._silence

    def _passed(self, start: float, now: float, grace_s: float) -> int:
        """How many deadlines have passed, each with this grace."""
        if now < self._deadline(start, self._frame) + grace_s:
            return 0
        elapsed = (now - grace_s - start) * self._sample_rate / self._frame_size
        return max(1, math.floor(elapsed) + 1 - self._frame)

    def _note_wait(self, start: float, now: float, after_s: float) -> None:
        """Notes how long the frame that is being put will wait."""
        waits = self._waits
        if waits and now - waits[-1][0] > after_s:
            waits.clear()  # a pause: what was before it says nothing
        waits.append((now, self._deadline(start, self._frame + len(self._waiting)) - now))

    def _take_back(self, now: float, after_s: float, spare: int) -> None:
        """Drops what every frame of the last `after_s` has waited, at most `spare` frames."""
        waits = self._waits
        if not waits or now - waits[0][0] < after_s:
            return
        while len(waits) > 1 and now - waits[1][0] >= after_s:
            waits.popleft()
        surplus = math.floor(min(wait for _, wait in waits) / self._frame_s + _ROUNDING)
        surplus = min(surplus, spare)
        if surplus <= 0:
            return
        for _ in range(surplus):
            loudness = [float(np.abs(frame).sum()) for frame in self._waiting]
            del self._waiting[loudness.index(min(loudness))]
        self.recovered += surplus
        self._waits = deque((put, wait - surplus * self._frame_s) for put, wait in waits)

    def _deadline(self, start: float, frame: int) -> float:
        return start + frame * self._frame_size / self._sample_rate
