"""Recording in parallel: what a worker's end, time and files that are there already do to it."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random

import numpy as np
import pytest

from recipes.nano.clips import recorded
from recipes.nano.kokoro import Sentence
from recipes.nano.recording import File, Record, record_all, singly
from recipes.nano.synthesise import SHARD, record_kokoro


def files(folder: Path, part: str = "said") -> list[File]:
    return [File(folder, part, i) for i in range(4)]


def writes() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        path.write_text(f"{i} of {os.getpid()}")

    return singly(record)


def dies() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        if i == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory is short
        path.write_text("whole")

    return singly(record)


def fails() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        if i == 1:
            raise TimeoutError("the engine says nothing")
        path.write_text("whole")

    return singly(record)


def hangs() -> Record:
    def record(path: Path, rng: Random, i: int) -> None:
        threading.Event().wait()

    return singly(record)


@pytest.mark.parametrize(
    ("make", "error"), [(dies, BrokenProcessPool), (fails, TimeoutError)], ids=["dies", "fails"]
)
def test_a_worker_that_ends_is_noticed_and_its_files_can_be_made_later(tmp_path, make, error):
    with pytest.raises(error):
        record_all(files(tmp_path), make, 1)
    first, second, *_ = paths = [tmp_path / f"said-{i:04d}.npz" for i in range(4)]
    assert first.read_text() == "whole"
    assert not second.exists()
    record_all(files(tmp_path), writes, 2)
    assert sorted(tmp_path.iterdir()) == paths
    assert first.read_text() == "whole"
    assert second.read_text().startswith("1 of ")
    assert not multiprocessing.active_children()


def test_it_ends_when_its_time_is_over_whatever_an_engine_does(tmp_path):
    record_all(files(tmp_path), hangs, 2, 0.01)
    assert not multiprocessing.active_children()
    assert not list(tmp_path.iterdir())


def test_files_that_are_there_are_left_out_of_what_is_recorded_at_once(tmp_path):
    _, second, *_ = files(tmp_path)
    second.path.write_text("there")
    record_all(files(tmp_path), lists, 1, at_once=3)
    assert [file.path.read_text() for file in files(tmp_path)] == ["0 2", "there", "0 2", "3"]


def lists() -> Record:
    def record(files: list[File]) -> None:
        for file in files:
            file.path.write_text(" ".join(str(f.number) for f in files))

    return record


class Voices:
    """Plans a sentence whose first token is a number of its own."""

    def plan(self, text: str, rng: Random) -> Sentence:
        ones = np.ones(4, np.float32)
        return Sentence([rng.randrange(20_000), len(text)], ones, ones, 1.0, 1.0, text)


class Kokoro:
    """Speaks half a second of a tone whose first sample tells the sentence."""

    def speak(self, sentences, seed):
        tone = np.sin(np.arange(12_000) / 9).astype(np.float32)
        return [np.append(np.float32(-1), tone * (0.3 + s.tokens[0] / 40_000)) for s in sentences]


def test_sentences_spoken_side_by_side_go_to_the_files_they_are_of(tmp_path):
    together, alone = files(tmp_path, "kokoro"), files(tmp_path / "alone", "kokoro")
    (tmp_path / "alone").mkdir()
    record_kokoro(together, Voices(), Kokoro())
    for file in alone:
        record_kokoro([file], Voices(), Kokoro())
    for a, b in zip(together, alone, strict=True):
        clips = list(recorded(a.path))
        assert len(clips) == SHARD
        assert a.path.read_bytes() == b.path.read_bytes()
        assert all(m["voice"].rstrip(".?!") == m["text"] for _, m in clips)
    assert len({file.path.read_bytes() for file in together}) == 4
