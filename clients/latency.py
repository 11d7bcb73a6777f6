"""How long frames take: pairs what was sent with what came of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np


class Percentiles(msgspec.Struct, frozen=True):
    """Of latencies, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class FrameTimes:
    """The times of one session's frames, in seconds of the monotonic clock.

    A model starts up for some frames, and then gives one frame of audio for each it hears: output
    k is due to input k + start-up. Its latency runs from the moment that input's last sample was
    handed to the socket to the moment the output was read.
    """

    def __init__(self) -> None:
        self.sent: list[float] = []
        """When each input frame went out."""
        self.received: list[tuple[int, float]] = []
        """Index and time of each output frame."""

    @property
    def deficit(self) -> int:
        """Input frames that gave no output: start-up, and what was lost."""
        return len(self.sent) - len(self.received)

    @property
    def startup(self) -> int:
        """Frames by which the output is shorter than the input, by its own numbering."""
        if not self.received:
            return len(self.sent)
        return max(0, len(self.sent) - 1 - max(index for index, _ in self.received))

    def lost(self, startup: int) -> int:
        """Output frames that never came, for a model that starts up for so many."""
        return max(0, self.deficit - startup)

    @property
    def first_audio_s(self) -> float | None:
        """From the first frame sent to the first received."""
        return self.received[0][1] - self.sent[0] if self.received else None

    def latencies_s(self) -> list[float]:
        """Of each output frame that is due to an input frame, in the order they came."""
        due = self.sent[self.startup :]
        return [at - due[index] for index, at in self.received if index < len(due)]


def percentiles(latencies_s: Iterable[float]) -> Percentiles | None:
    """None if there are none."""
    values = 1000 * np.fromiter(latencies_s, np.float64)
    if not len(values):
        return None
    return Percentiles(*(round(float(v), 3) for v in np.percentile(values, [50, 95, 99, 100])))
