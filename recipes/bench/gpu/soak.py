"""Hours in minutes: sessions come and go at full speed, and what they held must come back."""

from __future__ import annotations

import random
from array import array

import psutil
import torch

from engine.api import OpenParams
from engine.core import EngineCore
from engine.model import LockstepModel
from engine.serve import serve
from recipes.bench.gpu.callers import BusyCallers
from recipes.bench.gpu.models import make_live, persona, sound, with_model
from recipes.bench.gpu.results import Case, Figures, Measured, allocated_gb

STEPS = 15_000
"""Twenty minutes of frames."""
_PERSONAS = 12
"""Prompts, of 20 to 130 positions. All are known before: then what is kept of them is steady."""
_EVERY = 250
"""Steps between two looks at the memory."""
_TOLERANCE_GB = 0.05


def measure(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """`seconds` for each case."""
    found = []
    for case in cases:
        print(f"  {case}, {STEPS} steps or {seconds:.0f} s", flush=True)

        def soak(model: LockstepModel, case: Case = case) -> Figures:
            return _soak(model, case, device, seconds)

        figures = with_model(device, case, soak, tiny=tiny)
        print(f"  {case}: {figures}", flush=True)
        found.append(Measured("soak", case, figures))
    return found


def _soak(model: LockstepModel, case: Case, device: torch.device, seconds: float) -> Figures:
    """Raises AssertionError if a slot, a page or memory isn't given back."""
    chance = random.Random(0)
    process = psutil.Process()
    on_device, on_host = array("d"), array("d")

    def params(lease: int) -> OpenParams:
        known = chance.randrange(_PERSONAS)
        return OpenParams(persona=persona(20 + 10 * known, known), seed=lease)

    def look(turn: int) -> None:
        if turn % _EVERY == 0:
            on_device.append(allocated_gb(device))
            on_host.append(process.memory_info().rss / 1e9)

    for known in range(_PERSONAS):
        make_live(model, 0, OpenParams(persona=persona(20 + 10 * known, known)))
        model.reset([0])
    core = EngineCore(model)
    pages = model.room().pages
    before = model.room().free_pages
    callers = BusyCallers(
        case.sessions,
        sound(model, 97),
        frames=STEPS,
        seconds=seconds,
        params=params,
        on_turn=look,
    )
    serve(core, callers)
    stats = core.stats()
    after = model.room().free_pages
    figures: Figures = {
        "steps": callers.turns,
        "frames": callers.answers,
        "sessions_served": callers.opened,
        "errors": callers.errors,
        "free_slots": stats.free,
        "memory_first_gb": on_device[len(on_device) // 5] if on_device else 0.0,
        "memory_last_gb": on_device[-1] if on_device else 0.0,
        "host_first_gb": on_host[len(on_host) // 5] if on_host else 0.0,
        "host_last_gb": on_host[-1] if on_host else 0.0,
    }
    if pages:
        figures |= {"pages": pages, "pages_before": before, "pages_after": after}
    grown = float(figures["memory_last_gb"]) - float(figures["memory_first_gb"])
    if stats.free != case.sessions or before != after or grown > _TOLERANCE_GB or callers.errors:
        raise AssertionError(f"something wasn't given back: {figures}")
    return figures
