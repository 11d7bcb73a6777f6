"""A tiny model's directory, written once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny model. Not to be changed: `tiny_copy` is."""
    from engine.tiny import write_tiny

    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(path)
    return path


@pytest.fixture
def tiny_copy(tiny: Path, tmp_path: Path) -> Path:
    """The same, to be changed: every file is a link that may be replaced."""
    path = tmp_path / "model"
    (path / "voices").mkdir(parents=True)
    for file in tiny.rglob("*.*"):
        (path / file.relative_to(tiny)).hardlink_to(file)
    return path
