"""What a run of the benchmark found: figures by case, as a table and as JSON."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np
import torch

Figures = dict[str, float | str]
"""By name. A name ends in its unit: `_ms`, `_s`, `_gb`, `_tb_s`, `_pct`; else it is a number."""


class Case(msgspec.Struct, frozen=True):
    """How an engine is set up for a measurement."""

    sessions: int
    kv: str = "bf16"
    context: int | None = None
    """Frames that a session remembers. None: as many as the model was made for."""
    weights: str = "bf16"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Reads SESSIONS[:KV[:CONTEXT[:WEIGHTS]]]. Raises ValueError for what isn't that."""
        sessions, kv, context, weights = (*text.split(":"), "", "", "")[:4]
        if text.count(":") > 3 or not {kv, weights} <= {"", "bf16", "fp8"}:
            raise ValueError(f"{text!r} isn't SESSIONS[:bf16|fp8[:CONTEXT[:bf16|fp8]]]")
        return cls(int(sessions), kv or "bf16", int(context or 0) or None, weights or "bf16")


class Measured(msgspec.Struct, frozen=True):
    """One line of a section's table."""

    section: str
    case: Case
    figures: Figures


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    device: str
    memory_gb: float
    copy_tb_s: float
    """Bytes read and written a second by a large copy in device memory."""
    versions: dict[str, str]
    taken: str
    """The day, in UTC."""


class Run(msgspec.Struct):
    """A result file. `failed` has the last line of each failed section's traceback."""

    machine: Machine
    measured: list[Measured] = []
    failed: dict[str, str] = {}

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self, enc_hook=float), indent=1))


def read_run(path: Path) -> Run:
    """Raises OSError or msgspec.DecodeError for what isn't a result file."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def percentiles(milliseconds: Sequence[float] | np.ndarray) -> Figures:
    """p50, p99 and max; nothing of nothing."""
    if not len(milliseconds):
        return {}
    p50, p99, most = np.percentile(milliseconds, [50, 99, 100])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(most)}


def table(measured: Sequence[Measured]) -> str:
    """The lines of one section, as text in columns."""
    names = list(dict.fromkeys(name for line in measured for name in line.figures))
    rows = [["sessions", "context", "KV", "weights", *names]]
    for line in measured:
        case = line.case
        setup = [str(case.sessions), str(case.context or "full"), case.kv, case.weights]
        rows.append(setup + [shown(line.figures.get(name, "")) for name in names])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def shown(figure: float | str) -> str:
    """A figure with about four digits."""
    if isinstance(figure, str):
        return figure
    return f"{figure:.0f}" if figure == int(figure) or abs(figure) >= 1000 else f"{figure:.3g}"


def look_at(device: torch.device) -> Machine:
    """Names the machine and measures its copy bandwidth: under a second, 8 GB of a GPU."""
    memory = 0.0
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if device.type == "cuda":
        known = torch.cuda.get_device_properties(device)
        name, memory = known.name, known.total_memory / 1e9
        versions |= {"cuda": str(torch.version.cuda), "driver": _driver()}
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions["triton"] = metadata.version("triton")
    else:
        name = platform.processor() or platform.machine()
    return Machine(
        device=name,
        memory_gb=memory,
        copy_tb_s=copy_bandwidth(device),
        versions=versions,
        taken=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def copy_bandwidth(device: torch.device) -> float:
    """TB/s of a copy within device memory, read and written: the median of ten."""
    size = 4 << 30 if device.type == "cuda" else 64 << 20
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = []
    for _ in range(10):
        synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    del source, target
    release(device)
    return 2 * size / float(np.median(seconds)) / 1e12


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Gives cached memory back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def allocated_gb(device: torch.device) -> float:
    """Device memory that tensors hold; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.stdout.split("\n")[0].strip()
