"""What a session costs beside a bare socket: both servers under the same load, one after the other.

    python -m recipes.bench.sockets --sessions 200 --seconds 20

First `recipes.bench.baseline`, then `duplex serve echo`, each a process of its own, each driven by
the load of `duplex bench`. Prints the CPU time of both for a session, their ratio, latencies and
lost frames; with `--json` the same as JSON.
"""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from clients.bench import BenchResult, bench
from clients.options import SessionOptions
from clients.report import bench_table
from clients.serving import server, serving
from media.formats import AudioFormat


def main(
    sessions: Annotated[int, typer.Option(help="Sessions at a time.")] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds of load for each server.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compares the server with a bare socket loop."""
    with server("-m", "recipes.bench.baseline") as url:
        bare = _load(url, sessions, seconds)
    with serving("echo", sessions) as url:
        real = _load(url, sessions, seconds)
    ratio = _ratio(real, bare)
    if as_json:
        both = {"bare": bare, "server": real, "ratio": ratio}
        print(json.dumps(msgspec.to_builtins(both)))
        return
    console = Console(highlight=False)
    for title, result in (("bare aiohttp socket", bare), ("duplex serve echo", real)):
        console.rule(title, align="left")
        console.print(bench_table(result))
    console.rule("CPU of a session, server over bare socket", align="left")
    console.print("-" if ratio is None else f"{ratio:.2f}")


def _ratio(real: BenchResult, bare: BenchResult) -> float | None:
    if real.server_cpu is None or not bare.server_cpu:
        return None
    return round(real.server_cpu / bare.server_cpu, 3)


def _load(url: str, sessions: int, seconds: float) -> BenchResult:
    options = SessionOptions(
        url=url, input_format=AudioFormat.PCM16, output_format=AudioFormat.PCM16
    )
    return uvloop.run(bench(options, sessions, seconds))


if __name__ == "__main__":
    typer.run(main)
