"""Keeps the times of steps up to date while an engine has nobody to measure them by."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from engine.admission import Admission
from engine.calibration import Calibration, recalibration
from engine.model import LockstepModel

FIRST_S: Final = 5.0
"""After the start, and after the last session has ended ..."""
LONGEST_S: Final = 300.0
"""... and each time twice as long, up to this, unless the number of sessions has changed."""


class Recalibration:
    """Measures a model's steps again, one at a time, whenever its engine has been left alone for a
    while: what the machine did at the start, or under the last callers, may be over.
    """

    def __init__(
        self, model: LockstepModel, admission: Admission, clock: Callable[[], float]
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._model = model
        self._admission = admission
        self._clock = clock
        self._pieces: Generator[None, None, Calibration] | None = None
        self._pause_s = FIRST_S
        self._due = clock() + FIRST_S

    @property
    def wait_s(self) -> float:
        """Until there is something to do; 0 while there is."""
        return 0.0 if self._pieces is not None else max(0.0, self._due - self._clock())

    def advance(self) -> None:
        """Makes one step. The caller sees to it that nobody has a row of the model."""
        if self._pieces is None:
            self._pieces = recalibration(self._model, self._admission.measured, clock=self._clock)
        try:
            next(self._pieces)
        except StopIteration as done:
            self._pieces = None
            before = self._admission.plan.slots
            self._admission.calibrated(done.value)
            changed = self._admission.plan.slots != before
            self._pause_s = FIRST_S if changed else min(2 * self._pause_s, LONGEST_S)
            self._due = self._clock() + self._pause_s

    def interrupt(self) -> None:
        """Somebody comes: all rows are as new, and it begins anew when they have gone."""
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None
        self._pause_s = FIRST_S

    def rest(self) -> None:
        """Nobody is left."""
        self._due = self._clock() + self._pause_s
