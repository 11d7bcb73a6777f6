"""Models by name, directory and repository."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine import registry
from engine.api import EngineConfig, EngineError, OpenParams
from engine.registry import build_model


def config(model: object, **options: object) -> EngineConfig:
    return EngineConfig(model=str(model), device="cpu", **options)


def test_echo() -> None:
    assert build_model(config("echo")).spec.slots == 64
    model = build_model(config("echo", slots=2, delay_frames=3))
    assert (model.spec.name, model.spec.slots, model.spec.startup_frames) == ("echo", 2, 3)


def test_echo_needs_no_torch() -> None:
    code = (
        "import sys; from engine.api import EngineConfig; from engine.registry import build_model;"
        "build_model(EngineConfig(model='echo')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tiny_is_written_loaded_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = build_model(config("tiny"))
    assert list(tmp_path.iterdir()) == []
    assert (model.spec.name, model.spec.slots) == ("tiny", 4)
    for _ in model.prefill(0, OpenParams(voice="bass")):
        pass
    assert model.step([0], np.zeros((1, 1920), np.float32)).heard[0]


def test_a_directory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_model(config(tiny, slots=1)).spec.slots == 1
    monkeypatch.chdir(tiny.parent)
    assert build_model(config("./tiny")).spec.name == "tiny"


def test_a_packaged_model(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ZOO", tmp_path)
    shutil.copytree(tiny, tmp_path / "small")
    (tmp_path / "unfinished").mkdir()
    said = json.loads((tmp_path / "small/config.json").read_text())
    (tmp_path / "small/config.json").write_text(json.dumps(said | {"name": "Small", "slots": 3}))
    assert registry.packaged_models() == ("small",)
    spec = build_model(config("small")).spec
    assert (spec.name, spec.slots) == ("Small", 3)
    with pytest.raises(EngineError, match="choose echo, echo-video, tiny, small, a dir"):
        build_model(config("large"))


@pytest.mark.parametrize("model", ["", "huge", "../nowhere", "/no/such/directory", "a/b/c"])
def test_what_there_isnt_lists_what_there_is(model: str) -> None:
    with pytest.raises(EngineError, match=r"no model .*: choose echo, echo-video, tiny.* a dir"):
        build_model(config(model))


def test_a_repository_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="someone/model: not fetched from the Hugging Face hub"):
        build_model(config("someone/model"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step_mode": "lazy"}, "no step mode 'lazy': choose ready or fixed"),
        ({"slots": 0}, "slots must be at least 1, not 0"),
        ({"delay_frames": 1}, "delay_frames is for the echoes only"),
        ({"voices_dir": "/no/such/directory"}, "no such directory of voices"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        build_model(config("tiny", **options))
