"""Measures at the start how long a model's steps are, before there are any sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec
import numpy as np

from engine.api import EngineError, OpenParams
from engine.capacity import StepCurve
from engine.model import LockstepModel

_STEPS: Final = 5
"""Measured of each size, after one that isn't."""
_ENOUGH_S: Final = 1.0
"""Of one size; after it there may be fewer."""
_LONGEST_S: Final = 20.0
"""Of the whole; larger sizes than were measured by then are extrapolated."""


class Calibration(msgspec.Struct, frozen=True):
    """What was measured."""

    curve: StepCurve
    """Of rows that remember all they can."""
    piece_s: float
    """A piece of a prompt, in the median."""


def calibrate(
    model: LockstepModel, *, clock: Callable[[], float] = time.perf_counter
) -> Calibration:
    """Steps silence in more and more rows, each as old as rows get, until a step takes longer than
    a frame: no engine can use more. All rows are as new afterwards. `clock` gives seconds.

    The shortest of some steps counts, for what else the machine does can only make them longer.
    """
    spec = model.spec
    began = clock()
    piece_s = _piece_s(model, clock)
    frame_s = spec.frame_size / spec.sample_rate
    points: dict[int, float] = {}
    aged = 0
    for rows in _sizes(spec.slots):
        for row in range(aged, rows):
            model.age(row, spec.context)
        aged = rows
        points[rows] = _step_s(model, range(rows), clock)
        if points[rows] > frame_s or clock() - began > _LONGEST_S:
            break
    model.reset(list(range(aged)))
    return Calibration(StepCurve(points), piece_s)


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


def _step_s(model: LockstepModel, rows: Sequence[int], clock: Callable[[], float]) -> float:
    pcm = np.zeros((len(rows), model.spec.frame_size), np.float32)
    took: list[float] = []
    while len(took) <= _STEPS and (len(took) < 2 or sum(took) < _ENOUGH_S):
        start = clock()
        model.step(rows, pcm)
        took.append(clock() - start)
    return min(took[1:])


def _sizes(rows: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on, and a row more than each: larger kernels may begin there."""
    sizes = {1, rows}
    power = 1
    while power < rows:
        sizes |= {power, power + 1, power * 3 // 2, power * 3 // 2 + 1}
        power *= 2
    return iter(sorted(size for size in sizes if 1 <= size <= rows))
