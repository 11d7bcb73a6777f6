"""The comparison with goldens: it passes on all, and it fails when it should."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from engine.parity import app

GOLDENS = Path(__file__).parents[1] / "goldens"
KINDS = {
    "mimi-tiny": ["codec: 40/40"],
    "moshi-tiny": ["sessions alone: 240/240", "sessions joining and leaving: 240/240"],
    "personaplex-tiny": ["voice by codes: 47/47", "saved voice: 47/47"],
}


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_all_goldens_are_equal() -> None:
    code, output = run(*(GOLDENS / kind for kind in KINDS), "--device", "cpu")
    assert code == 0
    lines = output.splitlines()
    expected = [f"{kind}: {check} frames equal" for kind in KINDS for check in KINDS[kind]]
    assert [line.partition(",")[0] for line in lines] == expected
    difference = float(lines[0].rpartition(" ")[2])
    assert 0 <= difference <= 1e-5


def changed(tmp_path: Path, kind: str, **arrays: object) -> Path:
    """A golden with other arrays; a function gets the array it changes."""
    path = Path(shutil.copytree(GOLDENS / kind, tmp_path / kind))
    case = dict(np.load(path / "case.npz"))
    for name, change in arrays.items():
        change(case[name])  # type: ignore[operator]
    np.savez(path / "case.npz", **case)
    return path


def add(*place: int, value: float = 1) -> object:
    def change(array: np.ndarray) -> None:
        array[place] += value

    return change


@pytest.mark.parametrize(
    ("kind", "array", "change", "said"),
    [
        ("mimi-tiny", "codes", add(7, 39), "codec: 39/40"),
        ("mimi-tiny", "decoded", add(76_799, value=2e-5), "40/40 frames equal, .* 2.0e-05: FAILED"),
        ("moshi-tiny", "step_output", add(3, 59, 8), "joining and leaving: 239/240"),
        ("moshi-tiny", "step_output", add(0, 0, 0), "sessions alone: 239/240"),
        ("moshi-tiny", "user_codes", add(1, 30, 0), "joining and leaving: 2[0-3][0-9]/240"),
        ("personaplex-tiny", "step_output", add(47, 8), "saved voice: 46/47"),
        ("personaplex-tiny", "step_output", add(1, 0), "voice by codes: 46/47"),
        ("personaplex-tiny", "voice_embeddings", add(5, 0, 0, value=9), "saved voice: .*FAILED"),
        ("personaplex-tiny", "voice_codes", add(5, 0), "voice by codes: .*FAILED"),
    ],
)
def test_one_difference_fails(
    tmp_path: Path, kind: str, array: str, change: object, said: str
) -> None:
    code, output = run(changed(tmp_path, kind, **{array: change}))
    assert code == 1
    failed = [line for line in output.splitlines() if line.endswith("FAILED")]
    assert any(re.search(said, line) for line in failed), output


def test_one_that_fails_doesnt_hide_the_others(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOLDENS / "mimi-tiny")
    assert code == 1
    assert "not a golden directory" in output
    assert "40/40 frames equal" in output


@pytest.mark.parametrize("name", ["config.json", "case.npz", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"nothing"])
def test_a_file_that_cant_be_read_is_named(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = Path(shutil.copytree(GOLDENS / "mimi-tiny", tmp_path / "golden"))
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)
    code, output = run(path)
    assert code == 1
    assert str(path) in output


def test_an_array_that_is_missing_is_named(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDENS / "moshi-tiny", tmp_path / "golden"))
    np.savez(path / "case.npz", step_output=np.load(path / "case.npz")["step_output"])
    code, output = run(path)
    assert code == 1
    assert "case.npz: no array 'user_codes'" in output
