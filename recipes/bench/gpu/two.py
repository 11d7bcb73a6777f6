"""Two GPUs of one host at once, a process each, beside one of them alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from recipes.bench.gpu.results import Case, Measured, read_run


def measure(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """Frames of each case on one GPU, then on both; the ratio of what they could carry.

    That is frames a second of busy time: what a machine answers if it never waits. On a CPU the
    two share its cores. Raises RuntimeError if there is one GPU only, or if a process fails.
    """
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        raise RuntimeError(f"{torch.cuda.device_count()} GPU here")
    found: list[Measured] = []
    for case in cases:
        alone = _together([0], case, device, seconds, tiny)
        both = _together([0, 1], case, device, seconds, tiny)
        rates = [sum(map(_rate, group)) for group in (alone, both)]
        lines = zip(("one GPU", "first of two", "second of two"), (*alone, *both), strict=True)
        for name, line in lines:
            found.append(Measured("two", case, {"on": name, **line.figures}))
        found.append(Measured("two", case, {"on": "both to one", "ratio": rates[1] / rates[0]}))
    return found


def _rate(line: Measured) -> float:
    """Rows stepped in a second of stepping."""
    return 1e3 * float(line.figures["rows_a_step"]) / float(line.figures["step_mean_ms"])


def _together(
    gpus: list[int], case: Case, device: torch.device, seconds: float, tiny: bool
) -> list[Measured]:
    text = f"{case.sessions}:{case.kv}:{case.context or 0}:{case.weights}"
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{gpu}.json" for gpu in gpus]
        processes = []
        for gpu, path in zip(gpus, paths, strict=True):
            command = [sys.executable, "-m", "recipes.bench.gpu", "--sections", "frame"]
            command += ["--cases", text, "--seconds", str(seconds), "--json", str(path)]
            command += ["--device", device.type] + ["--tiny"] * tiny
            environ = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
            processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))
        try:
            codes = [process.wait(300 + 2 * seconds) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"a process failed: {codes}")
        return [read_run(path).measured[0] for path in paths]
