"""A training from outside: what it refuses, and that nothing of it outlives it."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from recipes.nano import clips, curves, tokenizer, train
from recipes.nano.clips import SAVED, Clips
from recipes.nano.synthesise import app
from recipes.nano.train_codec import Windows


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A folder of clips whose index never ends, since it is a pipe that nobody closes."""
    folder = tmp_path / "endless"
    folder.mkdir()
    os.mkfifo(folder / "agent.json")
    return folder


def is_read(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "agent.json", os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        assert error.errno == errno.ENXIO
        return False
    return True


def wait_for_reader(folder: Path) -> int:
    return os.open(folder / "agent.json", os.O_WRONLY)


def test_without_recordings_it_says_which_are_lacking(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "recipes.nano.train", "empty", "out"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    said = " ".join(done.stdout.replace("│", " ").split())
    assert "empty has no recordings of: agent item" in said
    assert "user greet" in said
    assert not (tmp_path / "out/clips").exists()


def test_a_training_that_is_told_to_end_leaves_nothing_behind(tmp_path, endless: Path) -> None:
    command = [sys.executable, "-m", "recipes.nano.train", str(endless), str(tmp_path / "out")]
    process = subprocess.Popen(command)
    writer = wait_for_reader(endless)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    os.close(writer)
    assert not is_read(endless)


def test_a_stage_that_fails_ends_the_one_beside_it(tmp_path: Path, endless: Path) -> None:
    (tmp_path / "empty").mkdir()
    with train.Run(tmp_path) as run:
        run.start("clips", "one/pcm.npy", endless, tmp_path / "one")
        writer = wait_for_reader(endless)
        run.start("clips", "two/pcm.npy", tmp_path / "empty", tmp_path / "two")
        with pytest.raises(typer.Exit):
            run.wait()
    os.close(writer)
    assert not is_read(endless)


def test_recordings_that_have_changed_since_are_refused(tmp_path: Path) -> None:
    folder, saved = tmp_path / "clips", tmp_path / "out/clips"
    folder.mkdir()
    (folder / "agent.json").write_text("[]")
    saved.mkdir(parents=True)
    (saved / SAVED).touch()
    (saved / clips.SOURCE).write_text(json.dumps(clips._listing(folder)))
    assert clips.made_of(saved, folder)
    (folder / "more.json").write_text("[]")
    assert not clips.made_of(saved, folder)
    with pytest.raises(typer.BadParameter, match="other recordings"):
        train.main(folder, tmp_path / "out")


def test_what_planning_raises_reaches_the_training() -> None:
    nobody = Clips(np.zeros(1, np.int16), np.zeros(1, np.int64), np.ones(1, np.int64), [{}])
    with pytest.raises(KeyError):
        next(iter(Windows(nobody, "cpu", 4, 0)))


def test_packing_what_is_not_there_leaves_what_was_packed(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "pico.json").write_text("[1]")
    result = CliRunner().invoke(app, ["pack", str(tmp_path), "pico", str(packed)])
    assert result.exit_code == 2
    assert "no recordings of pico" in " ".join(result.output.replace("│", " ").split())
    assert (packed / "pico.json").read_text() == "[1]"


def test_the_tokenizer_has_the_same_bytes_each_time_and_the_pieces_of_the_one_that_ships(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one.model", tmp_path / "two.model"
    tokenizer.train(one)
    tokenizer.train(two)
    assert one.read_bytes() == two.read_bytes()
    made, shipped = tokenizer.TextTokenizer(one), tokenizer.TextTokenizer(train.TOKENIZER)
    assert made.card == shipped.card
    assert [made.decode([i]) for i in range(4, made.card)] == [
        shipped.decode([i]) for i in range(4, made.card)
    ]


@pytest.mark.parametrize("rows", [[], [{"step": 1, "seconds": 0.5, "text": 2.0}]])
def test_a_log_without_the_curve_that_is_asked_for_is_refused(tmp_path: Path, rows) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps(rows))
    with pytest.raises(typer.BadParameter, match=r"no words in the log: (text|it is empty)"):
        curves.main(log, tmp_path / "out.svg", ["words"])
