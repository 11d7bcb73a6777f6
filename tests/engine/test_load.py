"""Loading a directory: parts that don't go together are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import memory
from engine.api import EngineConfig, EngineError
from engine.directory import read_directory
from engine.load import choose_device, load_model
from engine.rq import RQModel


def load(path: Path, **options: object) -> RQModel:
    directory = read_directory(path)
    return load_model(directory, EngineConfig(model="", device="cpu", slots=1, **options))


def change(path: Path, **values: object) -> None:
    file = path / "config.json"
    said = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))


def test_codec_and_model_must_have_books_of_one_size(tiny_copy: Path) -> None:
    change(tiny_copy, card=512)
    with pytest.raises(EngineError, match="has books of 512 codes, the codec of 256"):
        load(tiny_copy)


def test_the_tokenizer_must_fit(tiny_copy: Path) -> None:
    change(tiny_copy, text_card=100)
    with pytest.raises(EngineError, match="pieces, but the model knows 100 text tokens"):
        load(tiny_copy)


def test_a_tensor_that_is_missing_is_named(tiny_copy: Path) -> None:
    path = tiny_copy / "model.safetensors"
    weights = load_file(path)
    del weights["out_norm.alpha"]
    save_file(weights, path)
    with pytest.raises(EngineError, match=r"model\.safetensors: missing tensor out_norm\.alpha"):
        load(tiny_copy)


def test_weights_that_dont_fit_are_refused_before_they_are_read(
    tiny_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(EngineError, match=r"weights need .* MB on cpu, but 1.00 MB is free"):
        load(tiny_copy)


def test_the_default_voice(tiny_copy: Path) -> None:
    change(tiny_copy, default_voice=None)
    assert load(tiny_copy).spec.default_voice == "alto"
    codes = torch.zeros(2, 8, dtype=torch.int64)
    for name in ("ANNA", "NATF2"):
        save_file({"codes": codes}, tiny_copy / f"voices/{name}.safetensors")
    assert load(tiny_copy).spec.default_voice == "NATF2"
    change(tiny_copy, default_voice="bass")
    assert load(tiny_copy).spec.default_voice == "bass"
    change(tiny_copy, default_voice="nobody")
    with pytest.raises(EngineError, match="default_voice 'nobody' isn't among the voices"):
        load(tiny_copy)


def test_without_voices_there_is_no_default(tiny_copy: Path) -> None:
    change(tiny_copy, default_voice=None)
    for file in (tiny_copy / "voices").iterdir():
        file.unlink()
    spec = load(tiny_copy).spec
    assert (spec.voices, spec.default_voice, spec.persona) == ((), None, True)


def test_a_saved_voice_of_another_model_is_named(tiny_copy: Path) -> None:
    path = tiny_copy / "voices/bass.safetensors"
    save_file(load_file(path) | {"cache": torch.full((1, 17, 4), 300)}, path)
    with pytest.raises(EngineError, match=r"voice bass: .*unknown token"):
        load(tiny_copy)


def test_a_model_that_cant_be_prompted_says_so_at_once(moshi: Path, tmp_path: Path) -> None:
    directory = read_directory(moshi)
    assert load_model(directory, EngineConfig(model="", device="cpu", slots=1)).spec.voices == ()
    with pytest.raises(EngineError, match="voices_dir: the model moshi takes no voices"):
        load(moshi, voices_dir=str(tmp_path))


def test_codes_of_a_prompt_must_fit(tiny_copy: Path) -> None:
    change(tiny_copy, prompt=None)
    with pytest.raises(EngineError, match=r"prompt\.silence_codes must be 8 codes below 256"):
        load(tiny_copy)


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(EngineError, match="no device 'tpu': choose auto, cpu or cuda"):
        choose_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_cuda_device_that_isnt_there() -> None:
    with pytest.raises(EngineError, match="no CUDA device here"):
        choose_device("cuda")
