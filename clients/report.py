"""Results for people: tables and a progress bar on a terminal, and JSON with the same fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from clients import replay, robot_replay
from clients.bench import BenchResult
from clients.latency import Percentiles


def to_json(result: msgspec.Struct) -> str:
    """A result on one line of JSON."""
    return msgspec.json.encode(result).decode()


@contextmanager
def replay_progress(console: Console) -> Iterator[replay.Progress]:
    """Shows a bar while a replay runs; gives what to call with its progress."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} frames"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        sent = bar.add_task("sent", total=None)
        received = bar.add_task("received", total=None)

        def show(frames_sent: int, frames_received: int, frames: int) -> None:
            bar.update(sent, completed=frames_sent, total=frames)
            bar.update(received, completed=frames_received, total=frames)

        yield show


def replay_table(result: replay.ReplayResult) -> Table:
    """What came of a replay."""
    rows = {
        "frames in": str(result.frames_in),
        "frames out": str(result.frames_out),
        "deficit": str(result.deficit),
        "lost": str(result.lost),
        "first audio": _ms(result.first_audio_ms),
        **_latency(result.latency),
        "transcript": result.transcript or "-",
        "response": ", ".join(result.response_ids) or "-",
        "session": f"{result.session_id}, closed: {result.closed or 'unknown'}",
    }
    for error in result.errors:
        rows[f"error {error.code}"] = error.message
    if result.output is not None:
        rows["written"] = f"{result.output}, {result.sample_rate} Hz"
    return _table(rows)


def bench_table(result: BenchResult) -> Table:
    """What a server did under load."""
    cpu = "-"
    if result.server_cpu is not None and result.server_cpu_per_session is not None:
        each = 1000 * result.server_cpu_per_session
        cpu = f"{result.server_cpu:.2f} cores, {each:.3f} ms a second for each session"
    return _table(
        {
            "sessions": str(result.sessions),
            "seconds": f"{result.seconds:.1f}",
            "frames in": str(result.frames_in),
            "frames out": str(result.frames_out),
            "lost": str(result.lost),
            "misses": f"{result.misses} later than a frame is long",
            **_latency(result.latency),
            "errors": str(result.errors),
            "server CPU": cpu,
            "client CPU": f"{result.client_cpu:.2f} cores",
        }
    )


def robot_table(result: robot_replay.RobotReplayResult) -> Table:
    """What came of recorded observations."""
    rows = {
        "inferences": str(result.inferences),
        "actions": f"{result.horizon} of {result.dim} numbers in a reply",
        **_latency(result.latency),
        "policy p50": _ms(None if result.policy is None else result.policy.p50_ms),
        "late": str(result.late),
    }
    if result.output is not None:
        rows["written"] = result.output
    return _table(rows)


def _latency(latency: Percentiles | None) -> dict[str, str]:
    if latency is None:
        return {"latency": "-"}
    return {
        "latency p50": _ms(latency.p50_ms),
        "latency p95": _ms(latency.p95_ms),
        "latency p99": _ms(latency.p99_ms),
        "latency max": _ms(latency.max_ms),
    }


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _table(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))  # a server's words are no markup
    return table
