"""Counters and histograms of the runtime: plain numbers, exported by whoever serves them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field


class Histogram:
    """Counts observations in buckets with the given upper bounds, plus one for the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.5, 1.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


@dataclass(slots=True)
class Metrics:
    """What an operator wants to see of the sessions; gauges are read where they live."""

    frames_in: int = 0
    """Frames fed to the engine."""
    frames_out: int = 0
    """Frames of audio routed to sessions."""
    late_frames: int = 0
    """Outputs that took longer than a frame lasts."""
    stale_frames: int = 0
    """Outputs dropped at routing: of an ended lease or an older epoch."""
    dropped_frames: int = 0
    """Frames of audio that a slow reader lost."""
    flushed_frames: int = 0
    """Frames of audio that an interruption took out of a queue."""
    padded_samples: int = 0
    """Silence that filled up the last frames of sessions."""
    concealed_frames: int = 0
    """Frames of input that were made up because the caller's didn't come."""
    slow_readers: int = 0
    """Sessions ended because their reader didn't read."""
    sessions_opened: int = 0
    sessions_closed: Counter[str] = field(default_factory=Counter)
    """By reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Sessions that got no slot, by reason."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors told to clients, by code."""
    engine_losses: int = 0
    step_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """A model step."""
    step_rows: Histogram = field(default_factory=lambda: Histogram(_ROWS))
    """Rows in a step."""
    frame_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """From a frame's feeding to its output's routing."""
