"""Loading a directory: parts that don't go together are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import memory
from engine.api import BadParams, EngineConfig, EngineError, OpenParams
from engine.build import build_core
from engine.cuda import gpu
from engine.cuda.options import CudaOptions
from engine.directory import read_directory
from engine.load import choose_device, cuda_options, load_model, load_prompter
from engine.mimi.codec import Mimi
from engine.registry import build_model
from engine.rq import RQModel
from engine.text import Tokenizer


def load(path: Path, **options: object) -> RQModel:
    directory = read_directory(path)
    return load_model(directory, EngineConfig(model="", device="cpu", slots=1, **options))


def change(path: Path, **values: object) -> None:
    file = path / "config.json"
    said = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))


def test_a_small_model_does_without_a_gpu_that_is_too_old(
    tiny_copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "find_gpu", lambda device: gpu.Gpu("GPU X", (8, 6)))
    directory = read_directory(tiny_copy)
    assert load_model(directory, EngineConfig(model="", slots=1)).spec.device == "cpu"
    assert "GPU X of compute capability 8.6" in caplog.text
    with pytest.raises(EngineError, match=r"compute capability 8\.6"):
        load_model(directory, EngineConfig(model="", slots=1, device="cuda"))
    monkeypatch.setattr("engine.load._SMALL_BYTES", 1000)
    with pytest.raises(EngineError, match=r"compute capability 8\.6"):
        load_model(directory, EngineConfig(model="", slots=1))


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


def test_settings_of_a_gpu_are_refused_on_a_cpu(tiny: Path) -> None:
    for option in ({"kv": "fp8"}, {"weights": "bf16"}, {"context": 100}):
        (name, value), *_ = option.items()
        with pytest.raises(EngineError, match=f"{name} {value}: only models on CUDA can be told"):
            load(tiny, **option)
        with pytest.raises(EngineError, match="not an echo"):
            build_model(EngineConfig(model="echo", **option))


def test_settings_of_a_gpu(tiny: Path) -> None:
    directory = read_directory(tiny)
    assert cuda_options(directory, EngineConfig(model="")) == CudaOptions()
    told = EngineConfig(model="", kv="fp8", weights="fp8", context=10)
    assert cuda_options(directory, told) == CudaOptions(kv="fp8", weights="fp8", context=10)
    fixed = EngineConfig(model="", kv="fp8", step_mode="fixed")
    assert cuda_options(directory, fixed) == CudaOptions(kv="fp8", fixed=True)
    with pytest.raises(EngineError, match=r"weights fp8: .*step_mode fixed, need bf16"):
        cuda_options(directory, EngineConfig(model="", weights="fp8", step_mode="fixed"))
    most = directory.lm_config.context
    with pytest.raises(EngineError, match=f"remembers 1 to {most} frames"):
        cuda_options(directory, EngineConfig(model="", context=most + 1))


def test_a_persona_fills_half_of_what_sessions_remember_at_most(tiny: Path) -> None:
    directory = read_directory(tiny)
    mimi = Mimi.load(directory.mimi, directory.mimi_config, books=directory.lm_config.books)
    tokenizer = Tokenizer(directory.tokenizer, directory.lm_config.text_card)
    config = EngineConfig(model="", context=20)
    prompter = load_prompter(directory, config, mimi, tokenizer, torch.device("cpu"))
    assert prompter is not None
    persona = OpenParams(persona="é" * 10)
    with pytest.raises(BadParams, match="tokens, more than 10"):
        prompter.check(persona)
    load(tiny).check(persona)


def test_auto_takes_as_many_rows_as_fit_and_leases_those_it_can_step(tiny: Path) -> None:
    config = EngineConfig(model=str(tiny), device="cpu", slots="auto")
    model = build_model(config)
    spec = model.spec
    assert spec.slots_by_memory
    assert spec.slots > 1
    core = build_core(model, config)
    assert 1 <= core.spec.slots <= spec.slots
    noun = "session" if core.spec.slots == 1 else "sessions"
    allowed = f"{core.spec.slots} {noun}: memory allows {spec.slots}, step time"
    assert core.spec.capacity.startswith(allowed)
    stats = core.stats()
    assert (stats.free, stats.steps, stats.latency_s) == (core.spec.slots, 0, None)


def test_an_aged_row_steps_as_an_old_one_and_is_new_after_a_reset(tiny: Path) -> None:
    model = load(tiny, seed=1)
    greedy = OpenParams(text_temperature=0, audio_temperature=0)
    pcm = np.random.default_rng(0).normal(0, 0.1, (1, model.spec.frame_size)).astype(np.float32)

    def answers() -> list[bytes]:
        for _ in model.prefill(0, greedy):
            pass
        found = [model.step([0], pcm).pcm.tobytes() for _ in range(4)]
        model.reset([0])
        return found

    new = answers()
    model.age(0, model.spec.context)
    assert model.step([0], pcm).heard == [True]
    model.reset([0])
    assert answers() == new


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(EngineError, match="no device 'tpu': choose auto, cpu, cuda or cuda:INDEX"):
        choose_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_cuda_device_that_isnt_there() -> None:
    with pytest.raises(EngineError, match="no CUDA device here"):
        choose_device("cuda")
