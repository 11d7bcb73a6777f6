"""What a server decides by itself: how many sessions, of its memory and of its steps."""

from __future__ import annotations

import time

import torch

from engine.api import EngineConfig
from engine.build import build_core
from engine.model import LockstepModel
from recipes.bench.gpu.models import with_model
from recipes.bench.gpu.results import Case, Figures, Measured, allocated_gb


def measure(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """Of a case its sessions don't count, nor do `seconds`: a start takes its own time."""
    found: list[Measured] = []
    for case in cases:
        figures = with_model(
            device, case, lambda model: _decide(model, device), tiny=tiny, by_memory=True
        )
        print(f"  {case}: {figures}", flush=True)
        found.append(Measured("calibrate", case, figures))
    return found


def _decide(model: LockstepModel, device: torch.device) -> Figures:
    began = time.monotonic()
    config = EngineConfig(model="random", slots="auto", admission="measured")
    spec = build_core(model, config).spec
    return {
        "sessions": spec.slots,
        "by_memory": model.spec.slots,
        "reason": spec.capacity,
        "took_s": time.monotonic() - began,
        "memory_gb": allocated_gb(device),
    }
