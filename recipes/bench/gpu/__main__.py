"""Measures the engine on a GPU, and the reference beside it: `python -m recipes.bench.gpu`.

    python -m recipes.bench.gpu --sections step,reference --json step.json
    python -m recipes.bench.gpu --sections frame --cases 400:fp8:750,500:fp8:750 --seconds 60

Each section prints a table, and all of them go into one JSON file, which
`python -m recipes.bench.gpu.report` turns into pages. A section that fails prints its traceback,
and the next one goes on; then the exit status is 1. Without a GPU, `--device cpu --tiny` runs the
same sections on a tiny model.

| section     | measures                                                 | takes, on an H200      |
|-------------|----------------------------------------------------------|------------------------|
| `reference` | the moshi package's step, compiled and not               | 80 s a case            |
| `step`      | all sessions at once                                     | 20 s a model, 5 a case |
| `frame`     | callers in real time, while others join and leave        | `--seconds` a case     |
| `join`      | from open to live, beside live sessions                  | `--seconds` a case     |
| `fixed`     | the same bits whoever shares the batch, and what it costs | 2 min a case          |
| `soak`      | 15,000 steps with joins and leaves; what is given back   | `--seconds` a case     |
| `two`       | `frame` on two GPUs at once                              | twice `frame`          |
| `calibrate` | how many sessions `--max-sessions auto` allows           | a minute a case        |
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from recipes.bench.gpu import calibrate, fixed, frame, reference, soak, step, two
from recipes.bench.gpu.results import Case, Measured, Run, look_at, table

_FULL_FP8 = ("64:fp8", "128:fp8")
_CASES = {
    "reference": ("1", "64"),
    "step": ("1", "8", "16", "32", "64", "64:fp8", "128:fp8"),
    "frame": _FULL_FP8,
    "join": ("64:fp8",),
    "fixed": ("64:fp8",),
    "soak": ("32:fp8:750",),
    "two": ("128:fp8",),
    "calibrate": ("0", "0:fp8", "0:fp8:750"),
}
_SECONDS = {
    "reference": 15.0,
    "step": 5.0,
    "frame": 180.0,
    "join": 30.0,
    "fixed": 60.0,
    "soak": 400.0,
    "two": 60.0,
    "calibrate": 0.0,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a section failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", default="reference,step", help=f"of {', '.join(_CASES)}")
    parser.add_argument("--cases", help="SESSIONS[:KV[:CONTEXT[:WEIGHTS]]],...: for each section")
    parser.add_argument("--seconds", type=float, help="for each case")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try it on a CPU")
    parser.add_argument("--json", type=Path, help="$OUT/bench.json if OUT is set")
    told = parser.parse_args(arguments)
    sections = told.sections.split(",")
    if unknown := set(sections) - set(_CASES):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    try:
        given = [Case.parse(text) for text in (told.cases or "").split(",") if text]
    except ValueError as error:
        parser.error(str(error))
    path = told.json or (Path(os.environ["OUT"]) / "bench.json" if "OUT" in os.environ else None)
    device = torch.device(told.device)
    run = Run(look_at(device))
    print(run.machine, flush=True)
    for name in sections:
        cases = given or [Case.parse(text) for text in _CASES[name]]
        seconds = told.seconds or _SECONDS[name]
        began = time.monotonic()
        print(f"{name}: {len(cases)} cases, {seconds:.0f} s each", flush=True)
        try:
            run.measured += _section(name, run, device, told.tiny)(cases, seconds)
        except Exception as error:
            traceback.print_exc()
            run.failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: took {time.monotonic() - began:.0f} s", flush=True)
        if path is not None:
            run.write(path)
    for name in sections:
        print(f"\n{name}", run.failed.get(name, ""))
        print(table([line for line in run.measured if line.section == name]))
    return bool(run.failed)


def _section(
    name: str, run: Run, device: torch.device, tiny: bool
) -> Callable[[list[Case], float], list[Measured]]:
    def steps(cases: list[Case], seconds: float) -> list[Measured]:
        return step.measure(cases, device, seconds, run.machine.copy_tb_s, tiny)

    def package(cases: list[Case], seconds: float) -> list[Measured]:
        return reference.compare(cases, device, seconds, tiny)

    if name == "step":
        return steps
    if name == "reference":
        return package
    measure = {
        "frame": frame.frames,
        "join": frame.joins,
        "fixed": fixed.measure,
        "soak": soak.measure,
        "two": two.measure,
        "calibrate": calibrate.measure,
    }[name]
    return lambda cases, seconds: measure(cases, device, seconds, tiny)


if __name__ == "__main__":
    sys.exit(main())
