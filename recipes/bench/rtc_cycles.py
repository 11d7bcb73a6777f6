"""What WebRTC callers leave behind in a process when they have come and gone.

    python -m recipes.bench.rtc_cycles --cycles 200

Callers and peers are in one process, so both sides count. Memory is counted after what is free has
been given back to the system. Ends with 1 if a task, a thread or a descriptor is left, or 5 MB.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from dataclasses import dataclass
from typing import Annotated, Final

import psutil
import typer
import uvloop
from rich.console import Console

from media.rtc.peer import Peer
from recipes.bench.rtc_callers import Caller

MAX_GROWTH: Final = 5 << 20
"""Bytes."""

_AT_ONCE: Final = 4
_WARM_UP: Final = 40
"""After so many calls libraries have what they keep for good."""
_PACKETS: Final = 10


@dataclass(frozen=True)
class State:
    """Of this process."""

    tasks: int
    threads: int
    descriptors: int
    memory: int

    @classmethod
    def now(cls) -> State:
        """What there is, and nothing that is only not collected yet."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        process = psutil.Process()
        return cls(
            tasks=len(asyncio.all_tasks()),
            threads=threading.active_count(),
            descriptors=process.num_fds(),
            memory=process.memory_info().rss,
        )


async def one_call() -> None:
    """Connects, says something, and hangs up."""
    peers: list[Peer] = []

    async def answer(offer: str) -> str:
        peers.append(await Peer.accept(offer))
        return peers[0].answer

    caller = Caller(0, listens=True)
    await caller.connect(answer)
    for _ in range(_PACKETS):
        caller.send()
    await caller.close()
    await peers[0].closed


async def calls(count: int) -> None:
    """So many, a few at a time."""
    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*(one_call() for _ in range(first, min(first + _AT_ONCE, count))))


async def compare(cycles: int) -> bool:
    """Whether nothing is left; says what is."""
    await calls(_WARM_UP)
    before = State.now()
    await calls(cycles)
    after = State.now()
    growth = after.memory - before.memory
    Console().print(
        f"{cycles} calls: tasks {before.tasks} -> {after.tasks}, threads {before.threads} -> "
        f"{after.threads}, descriptors {before.descriptors} -> {after.descriptors}, memory "
        f"{before.memory / (1 << 20):.1f} -> {after.memory / (1 << 20):.1f} MiB"
    )
    left = (after.tasks, after.threads, after.descriptors)
    return left == (before.tasks, before.threads, before.descriptors) and growth < MAX_GROWTH


def main(cycles: Annotated[int, typer.Option(help="Calls to count.")] = 200) -> None:
    """Tasks, threads, descriptors and memory that WebRTC callers leave behind."""
    if not uvloop.run(compare(cycles)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
