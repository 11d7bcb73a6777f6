"""Pages of results: `python -m recipes.bench.gpu.report RUN.json... --out recipes/bench`.

Writes RESULTS.md and a plot of step times beside it. Of what several runs have measured, the last
one's figures are taken: name the runs in `recipes/bench/runs` first, then new ones, and keep these
there too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from recipes.bench.gpu.models import remembered
from recipes.bench.gpu.results import Case, Figures, Machine, Measured, read_run, shown
from recipes.plot import Chart, Points, document

PLOT: Final = "step-time.svg"
_FRAME_MS: Final = 80.0

_SETUP: Final = ("sessions", "context", "KV", "weights")
_SECTIONS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "step": (
        "Step",
        "All sessions have a frame at once: from their sound in host memory, through Mimi's "
        "encoder, a step of the model with sampling and Mimi's decoder, to the answers in host "
        "memory. The reference is the `moshi` package on the same machine, in bfloat16, with its "
        "own graphs: its functions compiled, and as they are written (`uncompiled`). Milliseconds. "
        "`% of copy` is what the step must read of weights, keys and values at least, over its "
        "time, as a share of the bandwidth of a plain copy on the same device; memory is that of "
        "all slots of the model.",
        {
            "reference_p50": "reference p50",
            "uncompiled_p50": "uncompiled p50",
            "p50_ms": "p50",
            "p99_ms": "p99",
            "ratio": "of the reference",
            "uncompiled_ratio": "of the uncompiled",
            "encode_ms": "encode",
            "temporal_ms": "temporal",
            "depth_ms": "depth",
            "decode_ms": "decode",
            "copy_pct": "% of copy",
            "memory_gb": "memory, GB",
        },
    ),
    "frame": (
        "Frame",
        "Callers in real time, each at a phase of its own, through the engine's own loop; every "
        "two seconds one leaves and another joins with a prompt of 120 positions that nobody had "
        "before. A frame's latency runs from the moment it is ready in host memory to its answer "
        "in host memory. Contexts are full throughout.",
        {
            "p50_ms": "p50",
            "p99_ms": "p99",
            "max_ms": "max",
            "late_pct": "% over 80 ms",
            "frames": "frames",
            "rows_a_step": "rows a step",
            "step_mean_ms": "mean step",
            "busy_pct": "% busy",
            "join_p50_ms": "join p50",
            "join_max_ms": "join max",
            "dropped": "dropped",
            "memory_gb": "memory, GB",
        },
    ),
    "join": (
        "Join",
        "From open to live of a prompt of 120 positions, beside live sessions in real time: new "
        "ones, and one that was known before. Milliseconds; the last columns are the latency of "
        "the live sessions' frames, and their longest step, while somebody joined.",
        {
            "cold_p50_ms": "new p50",
            "cold_max_ms": "new max",
            "warm_p50_ms": "known p50",
            "warm_max_ms": "known max",
            "beside_p99_ms": "frame p99 beside",
            "beside_max_ms": "frame max beside",
            "beside_step_max_ms": "longest step beside",
        },
    ),
    "calibrate": (
        "Sessions by themselves",
        "What `--max-sessions auto` decides at the start.",
        {
            "sessions": "sessions",
            "by_memory": "by memory",
            "reason": "why",
            "took_s": "measured in, s",
            "memory_gb": "memory, GB",
        },
    ),
    "fixed": (
        "Fixed",
        "Sessions that join, pause and leave at random, compared bit by bit to themselves alone; "
        "and a step with `fixed` and without.",
        {},
    ),
    "soak": (
        "Soak",
        "As many frames as in twenty minutes, at full speed, with joins and leaves: what was held "
        "before and after.",
        {},
    ),
    "two": (
        "Two GPUs",
        "The callers above on one GPU, then as many on each of two at once. The ratio is that of "
        "rows stepped in a second of stepping.",
        {
            "on": "on",
            "p50_ms": "p50",
            "p99_ms": "p99",
            "rows_a_step": "rows a step",
            "step_mean_ms": "mean step",
            "ratio": "ratio",
        },
    ),
}


def page(
    machines: Sequence[Machine], measured: Sequence[Measured], notes: Sequence[str] = ()
) -> str:
    """RESULTS.md of what was measured, the last of the same line. notes: paragraphs before it."""
    lines = latest(measured)
    parts = [
        "# Results on GPUs",
        "Written by `python -m recipes.bench.gpu.report` from what `python -m recipes.bench.gpu` "
        "measured: random weights in the sizes of PersonaPlex 7B, contexts full unless a table "
        "says otherwise, sampling on.",
        "\n".join(f"- {line}" for line in _where(machines)),
        *notes,
    ]
    missing: list[str] = []
    for name, (title, about, columns) in _SECTIONS.items():
        chosen = [line for line in lines if line.section == name]
        if name == "step":
            chosen = _beside_reference(chosen, lines)
        if chosen:
            parts += [f"## {title}", about, _table(chosen, columns)]
        if chosen and name == "step":
            parts.append(f"![Step time by sessions]({PLOT})")
        if not chosen:
            missing.append(f"- `{name}`: {about}")
    if missing:
        parts += ["## Not measured yet", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def plot(measured: Sequence[Measured]) -> str:
    """Step time by sessions, a curve for each context and type. Raises ValueError for none."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in latest(measured):
        case = line.case
        if line.section == "reference":
            uncompiled = line.figures.get("compiled") == "no"
            name = "moshi package, bf16" + ", not compiled" * uncompiled
        elif line.section == "step":
            types = case.kv if case.weights == "bf16" else f"{case.kv}, weights {case.weights}"
            name = f"{types}, {remembered(case, tiny=False)} frames"
        else:
            continue
        curves.setdefault(name, []).append((case.sessions, float(line.figures["p50_ms"])))
    ordered: dict[str, Points] = dict(sorted(curves.items()))
    title = "Step of all sessions at once, p50"
    limit = ("a frame", _FRAME_MS)
    return document([Chart(title, ordered, "sessions", "ms", True, limit, height=400)])


def latest(measured: Sequence[Measured]) -> list[Measured]:
    """Without what was measured again later; in the order of sessions."""
    kinds = ("on", "compiled", "identical")
    last = {
        (line.section, line.case, *(line.figures.get(kind) for kind in kinds)): line
        for line in measured
    }
    # Stable: what a run found in order stays so.
    return sorted(
        last.values(), key=lambda line: (line.case.context or 1 << 30, line.case.sessions)
    )


def _beside_reference(steps: list[Measured], lines: list[Measured]) -> list[Measured]:
    references: dict[int, Figures] = {}
    for line in lines:
        if line.section == "reference":
            name = "uncompiled_p50" if line.figures.get("compiled") == "no" else "reference_p50"
            references.setdefault(line.case.sessions, {})[name] = line.figures["p50_ms"]
    found = {line.case.sessions for line in steps}
    alone = [Measured("step", Case(count), {}) for count in references if count not in found]
    joined: list[Measured] = []
    for line in sorted([*steps, *alone], key=lambda line: line.case.sessions):
        figures = line.figures | references.get(line.case.sessions, {})
        for ratio, reference in (
            ("ratio", "reference_p50"),
            ("uncompiled_ratio", "uncompiled_p50"),
        ):
            if reference in figures and "p50_ms" in figures:
                figures[ratio] = float(figures["p50_ms"]) / float(figures[reference])
        joined.append(Measured("step", line.case, figures))
    return joined


def _table(lines: Sequence[Measured], columns: Mapping[str, str]) -> str:
    """Columns without any figure are left out; without `columns` a line is a list of its own."""
    if not columns:
        return "\n".join(
            f"- {_setup_words(line.case)}: "
            + ", ".join(f"{name} {shown(value)}" for name, value in line.figures.items())
            for line in lines
        )
    there = [name for name in columns if any(name in line.figures for line in lines)]
    rows = [[*_SETUP, *(columns[name] for name in there)]]
    rows.append(["---"] * len(rows[0]))
    for line in lines:
        setup = _setup(line.case)
        rows.append(setup + [shown(line.figures.get(name, "")) for name in there])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _setup(case: Case) -> list[str]:
    return [str(case.sessions), str(remembered(case, tiny=False)), case.kv, case.weights]


def _setup_words(case: Case) -> str:
    sessions, context, kv, weights = _setup(case)
    return f"{sessions} sessions, {context} frames, KV {kv}, weights {weights}"


def _where(machines: Sequence[Machine]) -> list[str]:
    """A line for each machine, with the copies that were measured on it."""
    copies: dict[str, list[float]] = {}
    for machine in machines:
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
        name = f"{machine.taken}: {machine.device}, {machine.memory_gb:.0f} GB; {versions}"
        copies.setdefault(name, []).append(machine.copy_tb_s)
    return [
        f"{name}; a plain copy moves {' to '.join(_ends(rates))} TB/s, read and written"
        for name, rates in copies.items()
    ]


def _ends(rates: Sequence[float]) -> list[str]:
    return sorted({f"{rate:.2f}" for rate in (min(rates), max(rates))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("recipes/bench"))
    parser.add_argument("--note", action="append", default=[], help="a paragraph before the tables")
    told = parser.parse_args()
    runs = [read_run(path) for path in told.runs]
    measured = [line for run in runs for line in run.measured]
    (told.out / "RESULTS.md").write_text(page([run.machine for run in runs], measured, told.note))
    if any(line.section in ("step", "reference") for line in measured):
        (told.out / PLOT).write_text(plot(measured))


if __name__ == "__main__":
    main()
