"""The clients of `recipes.bench.robot`, in a process of their own: robots, and people who talk."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
import numpy as np
import typer
import uvloop

from clients.bench import BenchResult, bench
from clients.latency import Percentiles, percentiles
from clients.options import SessionOptions
from clients.robot import connect
from media.formats import AudioFormat


class RobotLoad(msgspec.Struct, frozen=True):
    """What robots and people saw."""

    inferences: int
    seconds: float
    latency: Percentiles | None
    """Of inferences."""
    conversations: BenchResult | None
    """Of people who talked meanwhile."""


async def load(
    url: str, size: int, count: int, *, robots: int, sessions: int, talk_s: float
) -> RobotLoad:
    """Sends `count` observations of `size` bytes from `robots` robots while `sessions` people talk
    for `talk_s` seconds. Robots begin when people have.
    """
    options = SessionOptions(
        url=url, input_format=AudioFormat.PCM16, output_format=AudioFormat.PCM16
    )
    talking = asyncio.create_task(bench(options, sessions, talk_s)) if sessions else None
    await asyncio.sleep(0.5 if sessions else 0)
    latencies: list[float] = []
    image = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    began = time.perf_counter()

    async def robot() -> None:
        async with connect(url) as policy:
            for _ in range(count // robots):
                sent = time.perf_counter()
                await policy.infer({"image": image, "prompt": "go"})
                latencies.append(time.perf_counter() - sent)

    await asyncio.gather(*(robot() for _ in range(robots)))
    seconds = time.perf_counter() - began
    conversations = await talking if talking else None
    return RobotLoad(len(latencies), seconds, percentiles(latencies), conversations)


def main(
    url: str,
    *,
    size: Annotated[int, typer.Option()],
    count: Annotated[int, typer.Option()],
    robots: Annotated[int, typer.Option()] = 1,
    sessions: Annotated[int, typer.Option()] = 1,
    talk_s: Annotated[float, typer.Option()] = 10.0,
) -> None:
    """Prints a RobotLoad as JSON."""
    result = uvloop.run(load(url, size, count, robots=robots, sessions=sessions, talk_s=talk_s))
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    typer.run(main)
