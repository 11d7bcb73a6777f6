"""What the running engine measures of itself, and how many sessions it takes for it."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from engine.calibration import Calibration
from engine.capacity import PLANNED_SHARE, Plan, load_of, plan_slots

logger = logging.getLogger(__name__)

REFUSED_SHARE: Final = 1.0
"""Of a frame's time: with frames later than that, fewer sessions are taken ..."""
ADMITTED_SHARE: Final = 0.9
"""... and then no more until frames would come by this part of it, or, where nobody said how many
there may be, by PLANNED_SHARE.
"""
ENOUGH_STEPS: Final = 64
"""That steps take longer than was measured by calibration is known from so many ..."""
FEW_STEPS: Final = 8
"""... and that they don't from so many, which refuse nobody."""
COLD_SHARE: Final = 0.1
"""Of a frame's time: a step after a longer pause may take longer than one under load, and never
less. Caches were lost and clocks turned down meanwhile, and more sessions make such pauses rare.
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
    """How many sessions are taken: the `plan` in force.

    It follows the predicted latency of frames, from a calibration and from by how much the last
    steps took longer or shorter than that says of as many rows as old. The calibration alone judges
    who comes before there are steps. Fewer sessions are taken once frames would come after the
    next is due, and more only when they would come well before: what lies between changes nothing,
    so that the number doesn't swing with every disturbance.

    All that is measured goes in by its median, and no refusal rests on less than ENOUGH_STEPS: a
    few slow steps, whatever held them up, refuse nobody. Neither do steps after pauses
    (COLD_SHARE): they only show that others are not as slow as calibration or those under load
    were, whatever else the machine did then. Nor do the pieces of prompts between steps: while
    somebody joins a frame may be later by one of them, and then no more. But where sessions are
    added they count.
    """

    def __init__(
        self, measured: Calibration, frame_s: float, slots: int, *, by_memory: bool = False
    ) -> None:
        """`slots`: as many as there may be; `by_memory`: for which there is memory, and nobody has
        said that there should be as many.
        """
        self.measured = measured
        """By the last calibration."""
        self._frame_s = frame_s
        self._slots = slots
        self._limit = "memory allows" if by_memory else "max_sessions"
        self._share = PLANNED_SHARE if by_memory else ADMITTED_SHARE
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        """By which steps took longer than calibration says ..."""
        self._busy_ratios: deque[float] = deque(maxlen=_WINDOW)
        """... and those of a busy engine."""
        self.plan = self._planned(self._share) if by_memory else Plan(slots, "")
        """As many are taken, and why; "" if that is as many as were said."""
        self._steps = 0
        self.correct()

    def stepped(self, rows: int, seconds: float, pause_s: float = 0.0, age: float = 1.0) -> None:
        """A step of so many rows was made, `pause_s` after the engine's last work. `age`: the part
        of what they can remember that they did, in the mean.
        """
        ratio = seconds / self.measured.step_s(rows, age)
        self._ratios.append(ratio)
        if pause_s <= COLD_SHARE * self._frame_s:
            self._busy_ratios.append(ratio)
        self._steps += 1
        if self._steps % ENOUGH_STEPS == 0:
            self.correct()

    def calibrated(self, measured: Calibration) -> None:
        """Steps were measured again: from here on that alone judges, as at the start."""
        self.measured = measured
        self._ratios.clear()
        self._busy_ratios.clear()
        self.correct()

    @property
    def slowdown(self) -> float:
        """By which steps take longer now than calibration says."""
        slowdown = median(self._busy_ratios) if len(self._busy_ratios) >= ENOUGH_STEPS else 1.0
        return min(slowdown, median(self._ratios)) if len(self._ratios) >= FEW_STEPS else slowdown

    def latency_s(self, sessions: int) -> float:
        """Of a frame at most, with so many sessions; infinite if the engine would fall behind."""
        return self._latency_s(sessions, 0.0)

    def correct(self) -> None:
        """Brings the plan up to date with what was measured."""
        before = self.plan
        if self.latency_s(before.slots) > REFUSED_SHARE * self._frame_s:
            self.plan = self._planned(REFUSED_SHARE, pieces=False)
        elif before.slots < self._slots:
            more = self._planned(self._share)
            if more.slots > before.slots:
                self.plan = more
        if self.plan.slots != before.slots:
            words = "up" if self.plan.slots > before.slots else "down"
            logger.info("%s from %d: %s", words, before.slots, self.plan.reason)

    def refusal(self, sessions: int) -> str | None:
        """Why an engine with so many sessions takes no more, or None if it does."""
        self.correct()
        if sessions < self.plan.slots:
            return None
        why = f"with a session more than the {sessions} there are, frames would "
        latency_s = self._latency_s(sessions + 1, self.measured.piece_s)
        if math.isinf(latency_s):
            return why + "fall behind"
        allowed_s = self._share * self._frame_s
        return why + f"take up to {1000 * latency_s:.1f} ms; {1000 * allowed_s:.0f} ms are allowed"

    def _latency_s(self, sessions: int, piece_s: float) -> float:
        """With pieces of a prompt of so many seconds, while somebody joins."""
        curve, slowdown = self.measured.curve, self.slowdown
        load = load_of(curve, sessions, self._frame_s, piece_s=piece_s, slowdown=slowdown)
        return math.inf if load is None else load.latency_s

    def _planned(self, share: float, *, pieces: bool = True) -> Plan:
        return plan_slots(
            self.measured.curve,
            frame_s=self._frame_s,
            most=self._slots,
            limit=self._limit,
            piece_s=self.measured.piece_s if pieces else 0.0,
            slowdown=self.slowdown,
            share=share,
        )
