"""All sessions at once: the time of one step, from sound in host memory to sound in host memory."""

from __future__ import annotations

import time
import traceback

import numpy as np
import torch

from engine.api import OpenParams
from engine.model import LockstepModel
from recipes.bench.gpu.models import make_live, parts, remembered, sound, step_bytes, with_model
from recipes.bench.gpu.results import Case, Figures, Measured, allocated_gb, percentiles

_WARM_UP = 10
_STEPS = 500


def measure(
    cases: list[Case], device: torch.device, seconds: float, copy_tb_s: float, tiny: bool
) -> list[Measured]:
    """Cases that differ in their sessions alone share a model. `seconds` is for each case."""
    groups: dict[tuple[str, int | None, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kv, case.context, case.weights), []).append(case)
    found: list[Measured] = []
    for group in groups.values():
        most = max(group, key=lambda case: case.sessions)
        began = time.monotonic()
        print(f"  building {most}", flush=True)

        def group_times(
            model: LockstepModel,
            group: list[Case] = group,
            most: Case = most,
            began: float = began,
        ) -> list[Measured]:
            fill(model, most, tiny)
            print(f"  built and filled in {time.monotonic() - began:.1f} s", flush=True)
            lines: list[Measured] = []
            for case in group:
                figures = step_times(model, case.sessions, seconds)
                rate = step_bytes(case, case.sessions, tiny) / float(figures["p50_ms"]) / 1e9
                figures["copy_pct"] = 100 * rate / copy_tb_s
                figures["memory_gb"] = allocated_gb(device)
                print(f"  {case}: {figures}", flush=True)
                lines.append(Measured("step", case, figures))
            # Last, since it leaves the sessions' state worthless.
            for line in lines:
                line.figures.update(_parts(model, line.case.sessions))
            return lines

        found += with_model(device, most, group_times, tiny=tiny)
    return found


def _parts(model: LockstepModel, sessions: int) -> Figures:
    """Of one more step; none if that fails, which is told."""
    try:
        model.step(range(sessions), sound(model, sessions))
        return parts(model, sessions)
    except Exception:
        traceback.print_exc()
        return {}


def fill(model: LockstepModel, case: Case, tiny: bool) -> None:
    """Makes all rows live, with full contexts, each row at another position."""
    for row in range(case.sessions):
        make_live(model, row, OpenParams(seed=row))
        model.age(row, remembered(case, tiny) + 37 * row)


def step_times(model: LockstepModel, sessions: int, seconds: float) -> Figures:
    """Percentiles of steps of the first `sessions` rows. Raises ValueError for sound that is none.

    At least ten steps, at most 500.
    """
    rows = range(sessions)
    heard = sound(model, 4 * sessions).reshape(4, sessions, -1)
    for step in range(_WARM_UP):
        made = model.step(rows, heard[step % 4])
    if made.pcm.shape != heard[0].shape or not np.isfinite(made.pcm).all() or not all(made.heard):
        raise ValueError("a step gave no sound")
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < _STEPS and (len(times) < 10 or time.monotonic() < end):
        start = time.perf_counter()
        model.step(rows, heard[len(times) % 4])
        times.append(1e3 * (time.perf_counter() - start))
    return percentiles(times) | {"steps": len(times)}
