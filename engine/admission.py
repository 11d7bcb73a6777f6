"""What the running engine measures of itself, and whether it takes one more session for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from engine.capacity import StepCurve, load_of

REFUSED_SHARE: Final = 1.0
"""Of a frame's time: a session that would make frames later than that is refused ..."""
ADMITTED_SHARE: Final = 0.9
"""... and after it all others, until frames would come by this part of it."""
ENOUGH_STEPS: Final = 64
"""Until so many were seen, none is refused."""
COLD_SHARE: Final = 0.1
"""Of a frame's time: a step after a longer pause says nothing about steps under load. Caches were
lost and clocks turned down meanwhile, and more sessions make such pauses rare.
"""

_WINDOW: Final = 256


class StepLog:
    """The last steps: when they began, what they should have taken and what they took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self.seconds = 0.0
        """Of all steps, the forgotten ones too."""

    def add(self, start: float, seconds: float) -> None:
        """A step was made."""
        self._steps.append((start, seconds))
        self.seconds += seconds

    @property
    def utilisation(self) -> float:
        """The part of the time since the oldest of these steps in which one was under way."""
        if not self._steps:
            return 0.0
        elapsed = self._clock() - self._steps[0][0]
        return min(1.0, sum(seconds for _, seconds in self._steps) / elapsed) if elapsed else 0.0


class Admission:
    """Predicts the latency of frames from a curve that was measured at the start, and from by how
    much the last steps took longer or shorter than it says.

    All that is measured goes in by its median, and no refusal rests on less than ENOUGH_STEPS: a
    few slow steps, whatever held them up, refuse nobody. Neither do steps after pauses, which are
    slower than those of a busy engine (COLD_SHARE). Nor do the pieces of prompts between steps:
    while somebody joins a frame may be later by one of them, and then no more.
    """

    def __init__(self, curve: StepCurve, frame_s: float) -> None:
        self._curve = curve
        self._frame_s = frame_s
        self._steps = 0
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        self._full = False

    def stepped(self, rows: int, seconds: float, pause_s: float = 0.0) -> None:
        """A step of so many rows was made, `pause_s` after the engine's last work."""
        self._steps += 1
        if pause_s <= COLD_SHARE * self._frame_s:
            self._ratios.append(seconds / self._curve(rows))

    @property
    def slowdown(self) -> float:
        """By which steps take longer now than the curve says."""
        return median(self._ratios) if len(self._ratios) >= ENOUGH_STEPS else 1.0

    def latency_s(self, sessions: int) -> float:
        """Of a frame at most, with so many sessions; infinite if the engine would fall behind."""
        load = load_of(self._curve, sessions, self._frame_s, slowdown=self.slowdown)
        return math.inf if load is None else load.latency_s

    def refusal(self, sessions: int) -> str | None:
        """Why an engine with so many sessions takes no more, or None if it does."""
        if not sessions or self._steps < ENOUGH_STEPS:
            return None
        latency_s = self.latency_s(sessions + 1)
        share = ADMITTED_SHARE if self._full else REFUSED_SHARE
        self._full = latency_s > share * self._frame_s
        if not self._full:
            return None
        what = "fall behind" if math.isinf(latency_s) else f"take up to {1000 * latency_s:.0f} ms"
        return (
            f"with a session more than the {sessions} there are, frames of "
            f"{1000 * self._frame_s:.0f} ms would {what}"
        )
