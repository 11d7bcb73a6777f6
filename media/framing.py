"""Chunks of any size into frames of one size."""

from __future__ import annotations

import numpy as np

from media.formats import Pcm


class Framer:
    """Cuts a stream into frames of `frame_size` samples.

    A chunk that is exactly one frame, with nothing waiting before it, is given back as it is.
    """

    def __init__(self, frame_size: int) -> None:
        if frame_size <= 0:
            raise ValueError(f"frame_size {frame_size} is not positive")
        self.frame_size = frame_size
        self.samples_in = 0
        self.frames_out = 0
        self._partial: Pcm | None = None
        self._filled = 0

    @property
    def waiting(self) -> int:
        """Samples that are no whole frame yet."""
        return self._filled

    def push(self, pcm: Pcm) -> list[Pcm]:
        """Takes samples [n]; gives every frame [frame_size] they complete, in order."""
        size = self.frame_size
        self.samples_in += len(pcm)
        if len(pcm) == size and self._filled == 0:
            self.frames_out += 1
            return [pcm]
        frames = []
        start = 0
        if self._filled:
            start = min(size - self._filled, len(pcm))
            self._keep(pcm[:start])
            if self._filled == size:
                frames.append(self._take())
        whole = start + (len(pcm) - start) // size * size
        frames.extend(pcm[i : i + size] for i in range(start, whole, size))
        self._keep(pcm[whole:])
        self.frames_out += len(frames)
        return frames

    def flush(self) -> Pcm | None:
        """The samples that wait, padded with zeros to a frame; None if there are none."""
        if self._filled == 0:
            return None
        self.frames_out += 1
        return self._take()

    def clear(self) -> int:
        """Drops the samples that wait; gives how many."""
        dropped, self._filled, self._partial = self._filled, 0, None
        return dropped

    def _keep(self, pcm: Pcm) -> None:
        if len(pcm) == 0:
            return
        if self._partial is None:
            self._partial = np.zeros(self.frame_size, np.float32)
        self._partial[self._filled : self._filled + len(pcm)] = pcm
        self._filled += len(pcm)

    def _take(self) -> Pcm:
        frame = self._partial
        assert frame is not None
        self._partial = None
        self._filled = 0
        return frame
