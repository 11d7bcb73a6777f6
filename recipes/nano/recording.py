"""Recordings made in parallel: each file from random numbers of its own, unless it is there."""

import math
import multiprocessing as mp
import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

console = Console()
SAY_EVERY = 20  # files


@dataclass(frozen=True)
class File:
    """One recording of a part, with the random numbers that make it."""

    folder: Path
    part: str
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.part}-{self.number:04d}.npz"

    def rng(self) -> random.Random:
        return random.Random(f"{self.part} {self.number}")


Record = Callable[[list[File]], None]
_mine: list[Record] = []  # what this worker process records


def singly(record: Callable[[Path, random.Random, int], None]) -> Record:
    """Files one after another."""

    def one_by_one(files: list[File]) -> None:
        for file in files:
            record(file.path, file.rng(), file.number)

    return one_by_one


def _start(make: Callable[[], Record]) -> None:
    _mine.append(make())


def _record(files: list[File]) -> None:
    """Record what isn't there yet."""
    if lacking := [file for file in files if not file.path.exists()]:
        _mine[0](lacking)


def record_all(
    files: list[File],
    make: Callable[[], Record],
    workers: int,
    minutes: float = math.inf,
    at_once: int = 1,
) -> None:
    """Record files in parallel, for so long at most: what is half done then is not kept.

    Raises what a recorder raised, or BrokenProcessPool if a worker has died.
    """
    files[0].folder.mkdir(parents=True, exist_ok=True)
    jobs = [files[i : i + at_once] for i in range(0, len(files), at_once)]
    make()  # here first: a mistake shows, and files the engines make for themselves are made once
    begin, done, others = time.monotonic(), 0, mp.active_children()
    pool = ProcessPoolExecutor(workers, mp.get_context("spawn"), _start, (make,))
    try:
        waiting = {pool.submit(_record, job) for job in jobs}
        while waiting:
            left = begin + 60 * minutes - time.monotonic()
            timeout = max(0.0, left) if minutes < math.inf else None
            finished, waiting = wait(waiting, timeout, FIRST_COMPLETED)
            if not finished:
                break
            for future in finished:
                future.result()
                done += 1
                if done * at_once % SAY_EVERY == 0:
                    _say(done * at_once, files, begin)
    finally:
        for worker in mp.active_children():
            if worker not in others:
                worker.terminate()
        pool.shutdown(cancel_futures=True)
    _say(min(done * at_once, len(files)), files, begin)


def _say(done: int, files: list[File], begin: float) -> None:
    console.print(f"{done} of {len(files)} files in {time.monotonic() - begin:.0f} s")
