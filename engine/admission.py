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
"""That steps take longer than was measured at the start is known from so many ..."""
FEW_STEPS: Final = 8
"""... and that they don't from so many, which refuse nobody."""
COLD_SHARE: Final = 0.1
"""Of a frame's time: a step after a longer pause may take longer than one under load, and never
less. Caches were lost and clocks turned down meanwhile, and more sessions make such pauses rare.
"""
FORGET_AFTER_S: Final = 60.0
"""Of an engine that did nothing: what it measured before says nothing of the machine as it is."""

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
    much the last steps took longer or shorter than it says. The curve alone judges who comes first,
    before there are steps, and after a long time without any (`forget`).

    All that is measured goes in by its median, and no refusal rests on less than ENOUGH_STEPS: a
    few slow steps, whatever held them up, refuse nobody. Neither do steps after pauses
    (COLD_SHARE): they only show that others are not as slow as the curve or those under load were,
    whatever else the machine did then. Nor do the pieces of prompts between steps: while somebody
    joins a frame may be later by one of them, and then no more.
    """

    def __init__(self, curve: StepCurve, frame_s: float) -> None:
        self._curve = curve
        self._frame_s = frame_s
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        """By which steps took longer than the curve says ..."""
        self._busy_ratios: deque[float] = deque(maxlen=_WINDOW)
        """... and those of a busy engine."""
        self._full = False

    def stepped(self, rows: int, seconds: float, pause_s: float = 0.0) -> None:
        """A step of so many rows was made, `pause_s` after the engine's last work."""
        ratio = seconds / self._curve(rows)
        self._ratios.append(ratio)
        if pause_s <= COLD_SHARE * self._frame_s:
            self._busy_ratios.append(ratio)

    def forget(self) -> None:
        """From here on the curve alone judges, as at the start."""
        self._ratios.clear()
        self._busy_ratios.clear()
        self._full = False

    @property
    def slowdown(self) -> float:
        """By which steps take longer now than the curve says."""
        slowdown = median(self._busy_ratios) if len(self._busy_ratios) >= ENOUGH_STEPS else 1.0
        return min(slowdown, median(self._ratios)) if len(self._ratios) >= FEW_STEPS else slowdown

    def latency_s(self, sessions: int) -> float:
        """Of a frame at most, with so many sessions; infinite if the engine would fall behind."""
        load = load_of(self._curve, sessions, self._frame_s, slowdown=self.slowdown)
        return math.inf if load is None else load.latency_s

    def refusal(self, sessions: int) -> str | None:
        """Why an engine with so many sessions takes no more, or None if it does."""
        if not sessions:
            return None
        latency_s = self.latency_s(sessions + 1)
        longest_s = (ADMITTED_SHARE if self._full else REFUSED_SHARE) * self._frame_s
        self._full = latency_s > longest_s
        if not self._full:
            return None
        why = f"with a session more than the {sessions} there are, frames would "
        if math.isinf(latency_s):
            return why + "fall behind"
        return why + f"take up to {1000 * latency_s:.1f} ms; {1000 * longest_s:.0f} ms are allowed"
