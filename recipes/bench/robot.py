"""Robots beside conversations: how long the event loop stands still, and what callers notice.

    python -m recipes.bench.robot

The server runs in this process with uvloop, its engine (`echo`) and the policy in theirs, and the
callers in a fourth. A probe asks for its turn every millisecond: how late it comes is the stall of
all sockets. On a machine whose cores are busy with other work that includes being descheduled, so
the CPU time that the loop's own thread spent between two turns stands beside it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated

import msgspec
import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from duplex.allocator import keep_freed_memory
from duplex.config import ServeConfig
from duplex.runtime import Runtime
from engine.child import ChildEngine
from recipes.bench.robot_load import RobotLoad
from web.server import Server

_PROBE_S = 1e-3


class Case(msgspec.Struct, frozen=True):
    """One load."""

    name: str
    size: int
    """Bytes of an observation."""
    count: int
    delay_ms: float
    """What the policy takes."""
    robots: int = 1


CASES = (
    Case("conversations only", 0, 0, 0.0),
    Case("224 x 224 image", 224 * 224 * 3, 1_000, 0.0),
    Case("224 x 224 image, slow policy", 224 * 224 * 3, 1_000, 10.0),
    Case("224 x 224 image, slow policy, 8 robots", 224 * 224 * 3, 1_000, 10.0, 8),
    Case("2 MiB", 2 << 20, 1_000, 0.0),
    Case("16 MiB", 16 << 20, 50, 0.0),
    Case("60 MiB", 60 << 20, 20, 0.0),
)


class Stalls(msgspec.Struct, frozen=True):
    """Of the event loop, in milliseconds."""

    p99_ms: float
    max_ms: float
    cpu_max_ms: float
    """The most CPU time that the loop's thread spent before others had their turn."""


class CaseResult(msgspec.Struct, frozen=True):
    """One load and what came of it."""

    name: str
    stalls: Stalls
    load: RobotLoad


class Probe:
    """Measures stalls between `start` and `result`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: list[float] = []
        self._spent: list[float] = []

    def start(self) -> None:
        """Begins."""
        self._cpu = time.thread_time()
        self._due = self._loop.time() + _PROBE_S
        self._timer = self._loop.call_at(self._due, self._turn)

    def result(self) -> Stalls:
        """Ends."""
        self._timer.cancel()
        late = 1e3 * np.array(self._late)
        return Stalls(
            round(float(np.percentile(late, 99)), 2),
            round(float(late.max()), 2),
            round(1e3 * max(self._spent), 2),
        )

    def _turn(self) -> None:
        now, cpu = self._loop.time(), time.thread_time()
        self._late.append(now - self._due)
        self._spent.append(cpu - self._cpu)
        self.start()


async def run(case: Case, sessions: int, talk_s: float) -> CaseResult:
    """Serves one load and watches the loop."""
    config = ServeConfig.model_validate(
        {
            "model": "echo",
            "port": 0,
            "max_sessions": max(1, sessions),
            "policy": "recipes.bench.robot_policy:make",
            "policy_options": {"delay_ms": case.delay_ms},
        }
    )
    async with Server(config, Runtime(ChildEngine(config.engine()))) as server:
        url = server.address.replace("http", "ws", 1)
        arguments = {
            "size": case.size,
            "count": case.count,
            "robots": case.robots,
            "sessions": sessions,
            "talk-s": talk_s,
        }
        probe = Probe()
        probe.start()
        clients = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "recipes.bench.robot_load", url),
            *(f"--{name}={value}" for name, value in arguments.items()),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await clients.communicate()
        stalls = probe.result()
    if clients.returncode:
        raise SystemExit(f"the clients of {case.name!r} ended with {clients.returncode}")
    return CaseResult(case.name, stalls, msgspec.json.decode(output, type=RobotLoad))


def main(
    sessions: Annotated[int, typer.Option(help="People who talk meanwhile.")] = 4,
    talk_s: Annotated[float, typer.Option(help="For how many seconds, at least.")] = 12.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measures every load, one after the other."""
    keep_freed_memory()
    results = [uvloop.run(run(case, sessions, talk_s)) for case in CASES]
    if as_json:
        print(json.dumps(msgspec.to_builtins(results)))
        return
    table = Table()
    for heading in ("load", "stall p99", "stall max", "CPU max", "inferences/s", "p50", "p99"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    table.add_column("frame p99", justify="right")
    table.add_column("lost", justify="right")
    for result in results:
        latency, talk = result.load.latency, result.load.conversations
        table.add_row(
            result.name,
            *(f"{ms:.1f} ms" for ms in msgspec.structs.astuple(result.stalls)),
            f"{result.load.inferences / result.load.seconds:.0f}" if latency else "-",
            f"{latency.p50_ms:.1f} ms" if latency else "-",
            f"{latency.p99_ms:.1f} ms" if latency else "-",
            f"{talk.latency.p99_ms:.1f} ms" if talk and talk.latency else "-",
            str(talk.lost) if talk else "-",
        )
    Console(highlight=False).print(table)


if __name__ == "__main__":
    typer.run(main)
