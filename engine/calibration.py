"""Measures how long a model's steps are: at the start, and again while nobody is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec
import numpy as np

from engine.api import EngineError, OpenParams
from engine.capacity import StepCurve
from engine.model import LockstepModel

_STEPS: Final = 3
"""Measured of each size and age, after one that isn't."""
_ENOUGH_S: Final = 1.0
"""Of one size and age; after it there may be fewer."""
_LONGEST_S: Final = 20.0
"""Of the whole; larger sizes than were measured by then are extrapolated."""
_REPEATED_SHARE: Final = 0.75
"""Of the rows, which are measured again; no more, for prompts that are kept may have the memory of
the others.
"""


class Calibration(msgspec.Struct, frozen=True):
    """What was measured."""

    curve: StepCurve
    """Of rows that remember all they can."""
    young: StepCurve
    """Of rows that remember nothing; nowhere above the other."""
    piece_s: float
    """A piece of a prompt, in the median."""

    def step_s(self, rows: int, age: float) -> float:
        """Seconds of a step of rows that remember, in the mean, this part of what they can."""
        young = min(self.young(rows), self.curve(rows))
        return young + age * (self.curve(rows) - young)


def calibrate(
    model: LockstepModel, *, clock: Callable[[], float] = time.perf_counter
) -> Calibration:
    """Steps silence in more and more rows, each as old as rows get, until a step takes longer than
    a frame: no engine can use more. Then the same with rows that are new, unless the first step
    took that long already. All rows are as new afterwards. `clock` gives seconds.

    The shortest of some steps counts, for what else the machine does can only make them longer.
    """
    pieces = _measure(model, clock, model.spec.slots)
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            old, young = done.value
            return Calibration(StepCurve(old), StepCurve(young), _piece_s(model, clock))


def recalibration(
    model: LockstepModel, known: Calibration, *, clock: Callable[[], float]
) -> Generator[None, None, Calibration]:
    """The same once more, a step at a time, of an engine that is left alone meanwhile. What isn't
    measured again is taken to have changed as much as what is: the largest sizes as the last that
    is, and pieces of prompts, which the model may remember by now, as a step of one row.

    May be closed early: then, too, all rows are as new.
    """
    rows = max(1, int(_REPEATED_SHARE * model.spec.slots))
    old, young = yield from _measure(model, clock, rows)
    return Calibration(
        StepCurve(_completed(old, known.curve.points)),
        StepCurve(_completed(young, known.young.points)),
        known.piece_s * old[1] / known.curve(1),
    )


def _measure(
    model: LockstepModel, clock: Callable[[], float], most: int
) -> Generator[None, None, tuple[dict[int, float], dict[int, float]]]:
    """The seconds of steps by their rows, of old and of new ones. Yields before each step."""
    spec = model.spec
    began = clock()
    frame_s = spec.frame_size / spec.sample_rate
    old: dict[int, float] = {}
    young: dict[int, float] = {}
    used: set[int] = set()
    try:
        for rows in _sizes(most):
            for row in range(len(used), rows):
                used.add(row)
                model.age(row, spec.context)
                yield
            old[rows] = yield from _step_s(model, range(rows), clock)
            if old[rows] > frame_s or clock() - began > _LONGEST_S:
                break
        if old[1] > frame_s:
            return old, old
        model.reset(sorted(used))
        used.clear()
        for rows in old:
            used.update(range(rows))
            young[rows] = yield from _step_s(model, range(rows), clock)
            if clock() - began > _LONGEST_S:
                break
    finally:
        model.reset(sorted(used))
    return old, _completed(young, old)


def _step_s(
    model: LockstepModel, rows: Sequence[int], clock: Callable[[], float]
) -> Generator[None, None, float]:
    pcm = np.zeros((len(rows), model.spec.frame_size), np.float32)
    took: list[float] = []
    while len(took) <= _STEPS and (len(took) < 2 or sum(took) < _ENOUGH_S):
        yield
        start = clock()
        model.step(rows, pcm)
        took.append(clock() - start)
    return min(took[1:])


def _completed(points: dict[int, float], known: Mapping[int, float]) -> dict[int, float]:
    """With what is known of larger sizes, in proportion to the largest that is in both."""
    last = max(points.keys() & known.keys())
    change = points[last] / known[last]
    return {rows: change * seconds for rows, seconds in known.items() if rows > last} | points


def _piece_s(model: LockstepModel, clock: Callable[[], float]) -> float:
    """Of the model's own prompt; 0 if it can't do without one that is said."""
    times = [clock()]
    try:
        times.extend(clock() for _ in model.prefill(0, OpenParams()))
    except EngineError:
        return 0.0
    finally:
        model.reset([0])
    times.append(clock())
    return median(end - start for start, end in pairwise(times))


def _sizes(rows: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on, and a row more than each: larger kernels may begin there."""
    sizes = {1, rows}
    power = 1
    while power < rows:
        sizes |= {power, power + 1, power * 3 // 2, power * 3 // 2 + 1}
        power *= 2
    return iter(sorted(size for size in sizes if 1 <= size <= rows))
