"""How much memory a device has left."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from engine.api import EngineError
from engine.capacity import MAX_SLOTS

_CPU_SLOTS: Final = 64
"""No CPU steps more in time."""
_SPARE: Final = 0.1
"""Of what is free: for what steps need beside the slots."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now.

    On a CPU: what Linux calls available, bounded by the control group; elsewhere all of it.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # What was freed by tensors counts as free.
        free, _ = torch.cuda.mem_get_info(device)
        return free
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _MEMINFO.exists():
        lines = (line.split() for line in _MEMINFO.read_text().splitlines())
        free = next(int(line[1]) << 10 for line in lines if line[0] == "MemAvailable:")
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)


def check_weights(path: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Raises EngineError if a checkpoint's tensors, all of them in `dtype`, need more than is free.

    A checkpoint that can't be read isn't judged here.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            count = sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return
    need, free = count * dtype.itemsize, free_bytes(device)
    if need > free:
        raise EngineError(
            f"{path}: {dtype} weights need {_size(need)} on {device}, but {_size(free)} is free"
        )


def check_slots(slots: int, slot_bytes: int, device: torch.device) -> None:
    """Raises EngineError, which says how many fit, if `slots` slots need more than is free."""
    need, free = slots * slot_bytes, free_bytes(device)
    if need > free:
        raise EngineError(
            f"{slots} slots need {_size(need)} on {device} ({_size(slot_bytes)} each), but "
            f"{_size(free)} is free: at most {free // slot_bytes} fit"
        )


def slots_that_fit(slot_bytes: int, device: torch.device, *, reserve: int = 0) -> int:
    """As many slots as the free memory has room for, less `reserve` bytes and a spare part.

    One at least: whether that fits, `check_slots` says.
    """
    room = int((free_bytes(device) - reserve) * (1 - _SPARE)) // slot_bytes
    return max(1, min(room, _CPU_SLOTS if device.type == "cpu" else MAX_SLOTS))


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count / 1e6:.2f} MB"
