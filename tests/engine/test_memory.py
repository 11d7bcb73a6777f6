"""Memory that is free, and slots that fit it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from engine import memory
from engine.api import EngineError
from engine.capacity import MAX_SLOTS
from engine.memory import check_slots, check_weights, free_bytes, slots_that_fit

CPU = torch.device("cpu")


def test_free_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < free_bytes(CPU) <= psutil.virtual_memory().total


def test_a_control_group_bounds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    without = free_bytes(CPU)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert free_bytes(CPU) == 600_000
    (tmp_path / "memory.current").write_text("1400000\n")
    assert free_bytes(CPU) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) == pytest.approx(without, rel=0.5)


def test_too_many_slots_are_told_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3_500_000_000)
    check_slots(3, 1_000_000_000, CPU)
    with pytest.raises(EngineError, match=r"4 slots need 4.00 GB .*3.50 GB is free: at most 3 fit"):
        check_slots(4, 1_000_000_000, CPU)


def test_weights_must_fit_in_the_type_they_are_loaded_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(3, 1000, dtype=torch.bfloat16), "b": torch.zeros(7)}, path)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 12_027)
    check_weights(path, torch.bfloat16, CPU)
    with pytest.raises(EngineError, match=r"safetensors: torch.float32 .* 0.01 MB is free"):
        check_weights(path, torch.float32, CPU)


def test_as_many_slots_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10_000)
    assert slots_that_fit(1_000, CPU) == 9
    assert slots_that_fit(1_000, CPU, reserve=5_000) == 4
    assert slots_that_fit(1_000, CPU, reserve=50_000) == 1
    assert slots_that_fit(1, CPU) == 64
    assert slots_that_fit(1, torch.device("cuda")) == MAX_SLOTS
