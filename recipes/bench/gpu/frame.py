"""Callers in real time, each at a phase of its own, through the loop that serves them."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.api import OpenParams
from engine.core import EngineCore
from engine.model import LockstepModel
from engine.serve import serve
from recipes.bench.gpu.callers import PacedCallers, Visit
from recipes.bench.gpu.models import PROMPT, persona, remembered, sound, with_model
from recipes.bench.gpu.results import Case, Figures, Measured, allocated_gb, percentiles

CHANGE_S = 2.0
"""A caller leaves and another joins so often."""
_JOIN_S = 0.5


def frames(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """Frame latency over `seconds`, while callers come with prompts that nobody had before."""
    visits = (
        Visit(OpenParams(persona=persona(PROMPT, seed), seed=seed), "join", stays=True)
        for seed in itertools.count()
    )
    found: list[Measured] = []
    for case in cases:
        callers = _run(case, device, seconds, tiny=tiny, visits=visits, every_s=CHANGE_S, spare=0)
        found.append(Measured("frame", case, callers))
        print(f"  {case}: {callers}", flush=True)
    return found


def joins(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """Time from open to live beside live sessions, of new prompts and of one known before."""
    found: list[Measured] = []
    for case in cases:
        figures = _run(
            case, device, seconds, tiny=tiny, visits=_visitors(), every_s=_JOIN_S, spare=1
        )
        found.append(Measured("join", case, figures))
        print(f"  {case}: {figures}", flush=True)
    return found


def _visitors() -> Iterator[Visit]:
    """New and known prompts in turn; the first of the known ones is new."""
    known = OpenParams(persona=persona(PROMPT, seed=0), seed=0)
    yield Visit(known, "first", stays=False)
    for seed in itertools.count(1):
        cold = OpenParams(persona=persona(PROMPT, seed), seed=seed)
        yield Visit(cold, "cold", stays=False)
        yield Visit(known, "warm", stays=False)


def _run(
    case: Case,
    device: torch.device,
    seconds: float,
    *,
    tiny: bool,
    visits: Iterator[Visit],
    every_s: float,
    spare: int,
) -> Figures:
    print(f"  {case}, {seconds:.0f} s", flush=True)

    def run(model: LockstepModel) -> Figures:
        core = EngineCore(model)
        lived = remembered(case, tiny) + 37

        def full(row: int) -> None:
            model.age(row, lived + 5 * row)

        callers = PacedCallers(
            case.sessions,
            sound(model, 97),
            frame_s=core.spec.frame_s,
            seconds=seconds,
            visits=visits,
            visit_every_s=every_s,
            on_live=full,
        )
        with _collections() as pauses:
            serve(core, callers)
        figures = _figures(callers, model)
        return figures | {"gc_max_ms": max(pauses, default=0.0), "memory_gb": allocated_gb(device)}

    return with_model(device, case, run, tiny=tiny, spare=spare)


@contextmanager
def _collections() -> Iterator[list[float]]:
    """Milliseconds of each garbage collection within: a pause of the whole engine."""
    pauses: list[float] = []
    begun = 0.0

    def note(phase: str, about: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        else:
            pauses.append(1e3 * (time.perf_counter() - begun))

    gc.callbacks.append(note)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(note)


def _figures(callers: PacedCallers, model: LockstepModel) -> Figures:
    joined = percentiles(callers.joined.latencies)
    beside: Figures = {f"beside_{name}": joined[name] for name in ("p99_ms", "max_ms") if joined}
    beside["beside_step_max_ms"] = callers.joined.longest_step
    return callers.figures() | beside | {"prefix_hits": model.prefix_stats().hits}
