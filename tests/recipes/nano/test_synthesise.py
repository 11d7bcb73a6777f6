"""Recording in parallel: what a worker's end, time and files that are there already do to it."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random

import pytest

from recipes.nano.synthesise import Job, Record, _record_all


def jobs(folder: Path) -> list[Job]:
    return [(folder, "said", i) for i in range(4)]


def writes() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        path.write_text(f"{i} of {os.getpid()}")

    return record


def dies() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        if i == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory is short
        path.write_text("whole")

    return record


def fails() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        if i == 1:
            raise TimeoutError("the engine says nothing")
        path.write_text("whole")

    return record


def hangs() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        threading.Event().wait()

    return record


@pytest.mark.parametrize(
    ("make", "error"), [(dies, BrokenProcessPool), (fails, TimeoutError)], ids=["dies", "fails"]
)
def test_a_worker_that_ends_is_noticed_and_its_files_can_be_made_later(tmp_path, make, error):
    with pytest.raises(error):
        _record_all(jobs(tmp_path), make, 1, 1e6)
    first, second, *_ = paths = [tmp_path / f"said-{i:04d}.npz" for i in range(4)]
    assert first.read_text() == "whole"
    assert not second.exists()
    _record_all(jobs(tmp_path), writes, 2, 1e6)
    assert sorted(tmp_path.iterdir()) == paths
    assert first.read_text() == "whole"
    assert second.read_text().startswith("1 of ")
    assert not multiprocessing.active_children()


def test_it_ends_when_its_time_is_over_whatever_an_engine_does(tmp_path):
    _record_all(jobs(tmp_path), hangs, 2, 0.01)
    assert not multiprocessing.active_children()
    assert not list(tmp_path.iterdir())
