"""The tiny random model: complete, the same for the same seed, audible."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from engine.api import EngineConfig, EngineError, OpenParams
from engine.directory import read_directory
from engine.lm.config import LMConfig
from engine.registry import build_model
from engine.tiny import app, save_voice, write_tiny
from media.files import read_audio

GOLDEN = Path(__file__).parents[1] / "goldens/personaplex-tiny"
FRAME = 1920


def digests(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def test_it_has_the_files_of_a_published_model(tiny: Path) -> None:
    assert set(digests(tiny)) == {
        "config.json",
        "model.safetensors",
        "tokenizer-e351c8d8-checkpoint125.safetensors",
        "tokenizer_spm_32k_3.model",
        "voices/alto.safetensors",
        "voices/bass.safetensors",
    }
    with safe_open(tiny / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    with safe_open(tiny / "tokenizer-e351c8d8-checkpoint125.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert load_file(tiny / "voices/alto.safetensors").keys() == {"codes"}
    assert load_file(tiny / "voices/bass.safetensors").keys() == {"embeddings", "cache"}
    found = read_directory(tiny)
    assert (found.name, found.prompts, found.default_voice) == ("tiny", True, "alto")
    assert sum(file.stat().st_size for file in tiny.rglob("*")) < 4_000_000


def test_a_seed_is_a_model(tiny: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path / "same", 0)
    assert digests(tmp_path / "same") == digests(tiny)
    write_tiny(tmp_path / "other", 1)
    other = digests(tmp_path / "other")
    for name in ("model.safetensors", "voices/alto.safetensors", "voices/bass.safetensors"):
        assert other[name] != digests(tiny)[name]


def test_a_saved_voice_is_what_the_reference_saves() -> None:
    case = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / "case.npz").items()}
    config = LMConfig.from_json(json.loads((GOLDEN / "config.json").read_text()))
    saved = save_voice(config, load_file(GOLDEN / "model.safetensors"), case["voice_codes"])
    assert torch.equal(saved["embeddings"], case["voice_embeddings"])
    # Of the newest column only the late channels are said to hold anything.
    count, expected = len(case["voice_codes"]), case["voice_cache"]
    delays = torch.tensor(config.delays)
    for column in range(count - 2, count + 1):
        valid = delays == 1 if column == count else delays >= 0
        place = column % expected.shape[2]
        assert torch.equal(saved["cache"][0, valid, place], expected[0, valid, place])


SILENCE = np.zeros((60, FRAME), np.float32)
NOISE = np.random.default_rng(0).normal(0, 0.3, (60, FRAME)).astype(np.float32)


@pytest.fixture(scope="module", params=[0, 1])
def seeded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "seeded"
    write_tiny(path, request.param)
    return path


@pytest.mark.parametrize("sound", [SILENCE, NOISE], ids=["silence", "noise"])
@pytest.mark.parametrize("voice", ["alto", "bass"])
@pytest.mark.parametrize("temperature", [0.0, None], ids=["greedy", "sampled"])
def test_it_is_heard_whatever_it_hears(
    seeded: Path, sound: np.ndarray, voice: str, temperature: float | None
) -> None:
    listen(seeded, sound, voice, temperature)


def test_it_is_heard_when_it_hears_speech(tiny: Path, recording: Path) -> None:
    pcm = read_audio(recording, 24_000)[: 100 * FRAME]
    listen(tiny, pcm.reshape(-1, FRAME), "alto", None)


def listen(path: Path, sound: np.ndarray, voice: str, temperature: float | None) -> None:
    model = build_model(EngineConfig(model=str(path), slots=1, device="cpu"))
    params = OpenParams(
        voice=voice,
        persona="you are ada",
        seed=0,
        text_temperature=temperature,
        audio_temperature=temperature,
    )
    for _ in model.prefill(0, params):
        pass
    steps = [model.step([0], frame[None]) for frame in sound]
    assert all(step.heard[0] for step in steps)
    frames = np.concatenate([step.pcm for step in steps])
    loudness = np.sqrt((frames**2).mean(1))
    assert loudness.min() > 0.03
    assert loudness.max() < 0.3
    assert (np.abs(frames) >= 1).mean() < 1e-3
    assert abs(frames.mean()) < 0.02
    words = [step.text[0] for step in steps if step.text[0]]
    assert 0 < len(words) < 0.6 * len(steps)
    assert all(word[0] == " " and word[1:].isalpha() for word in words)


def test_it_is_written_from_the_command_line(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "made" / "here"
    for _ in range(2):
        result = CliRunner().invoke(app, [str(path), "--seed", "0"])
        assert result.exit_code == 0
        assert "alto and bass" in result.output
        assert digests(path) == digests(tiny)


def test_it_replaces_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == 1
    assert "there is something else in it" in result.output
    (tmp_path / "config.json").write_text('{"name": "precious"}')
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(EngineError, match="stays as it is"):
            write_tiny(path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"
