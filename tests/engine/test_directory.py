"""Model directories: what names their files, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.api import EngineError
from engine.directory import ModelDirectory, read_directory
from engine.lm.config import MOSHI_7B, PERSONAPLEX_7B
from engine.lm.prompt import PromptCodes
from engine.mimi.config import MIMI_24KHZ
from engine.sampling import Sampling

GOLDENS = Path(__file__).parents[1] / "goldens"
LM = "model.safetensors"
MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"
TOKENIZER = "tokenizer_spm_32k_3.model"
SIZES = json.loads((GOLDENS / "moshi-tiny/config.json").read_text())
CODEC = json.loads((GOLDENS / "mimi-tiny/config.json").read_text())


def make(path: Path, config: object = None, *, steps: int = 8, voices: str = "") -> Path:
    """A directory with the published names; of the weights only the heads are there."""
    heads = {f"linears.{step}.weight": torch.zeros(1) for step in range(steps)}
    save_file(heads, path / LM)
    for name in (MIMI, TOKENIZER):
        (path / name).touch()
    if voices:
        (path / voices).touch()
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_without_config_the_tensors_tell_moshi(tmp_path: Path) -> None:
    assert read_directory(make(tmp_path)) == ModelDirectory(
        path=tmp_path,
        name=tmp_path.name,
        about="",
        examples=(),
        lm=tmp_path / LM,
        mimi=tmp_path / MIMI,
        tokenizer=tmp_path / TOKENIZER,
        voices=None,
        lm_config=MOSHI_7B,
        mimi_config=MIMI_24KHZ,
        sampling=Sampling(0.7, 25, 0.8, 250),
        prompts=False,
        default_voice=None,
        slots=None,
    )


def test_without_config_sixteen_steps_are_personaplex(tmp_path: Path) -> None:
    found = read_directory(make(tmp_path, steps=16))
    assert (found.lm_config, found.prompts, found.voices) == (PERSONAPLEX_7B, True, None)


@pytest.mark.parametrize("name", ["voices", "voices.tgz"])
def test_without_config_voices_are_personaplex(tmp_path: Path, name: str) -> None:
    found = read_directory(make(tmp_path, steps=8, voices=name))
    assert (found.lm_config, found.prompts) == (PERSONAPLEX_7B, True)
    assert found.voices == tmp_path / name


def test_a_config_without_sizes_has_the_published_ones(tmp_path: Path) -> None:
    prompt = {"silence_frames": 3}
    config = {"model_type": "personaplex", "version": "7b-v1", "prompt": prompt}
    found = read_directory(make(tmp_path, config))
    assert found.prompts
    assert found.lm_config.dep_q == 16
    assert found.lm_config.prompt == PromptCodes(silence_frames=3)


def test_the_config_names_the_files(tmp_path: Path) -> None:
    names = {"moshi_name": "a.st", "mimi_name": "b.st", "tokenizer_name": "sub/c.model"}
    (tmp_path / "sub").mkdir()
    for name in names.values():
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text(json.dumps(SIZES | names))
    found = read_directory(tmp_path)
    assert [found.lm, found.mimi, found.tokenizer] == [tmp_path / n for n in names.values()]


@pytest.mark.parametrize(
    ("extra", "prompts"),
    [
        ({}, False),
        ({"dep_q": 16}, True),
        ({"prompt": {"silence_codes": [0] * 8, "user_codes": [1] * 8}}, True),
        ({"model_type": "personaplex"}, True),
    ],
)
def test_what_takes_prompts(tmp_path: Path, extra: dict[str, Any], prompts: bool) -> None:
    assert read_directory(make(tmp_path, SIZES | extra)).prompts == prompts


def test_the_codec_s_sizes_may_be_in_the_config_or_in_a_file(tmp_path: Path) -> None:
    inline = read_directory(make(tmp_path, SIZES | {"mimi_config": CODEC})).mimi_config
    assert inline.quantizer.bins == CODEC["quantizer"]["bins"]
    (tmp_path / "codec.json").write_text(json.dumps(CODEC))
    for key in ("mimi_config", "mimi_config_name"):
        found = read_directory(make(tmp_path, SIZES | {key: "codec.json"}))
        assert found.mimi_config == inline


def test_all_that_is_missing_is_named_with_the_directory(tmp_path: Path) -> None:
    make(tmp_path, SIZES | {"mimi_config": "codec.json"})
    (tmp_path / MIMI).unlink()
    (tmp_path / TOKENIZER).unlink()
    with pytest.raises(EngineError) as caught:
        read_directory(tmp_path)
    assert str(caught.value) == f"{tmp_path}: missing {MIMI}, {TOKENIZER}, codec.json"
    with pytest.raises(EngineError, match="nowhere: no such directory"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ([], "Expected `object`"),
        ({"moshi_name": 3}, r"\$\.moshi_name"),
        ({"moshi_name": "../other/model.safetensors"}, "isn't the name of a file in the directory"),
        ({"mimi_name": "/etc/passwd"}, "'/etc/passwd' isn't the name of a file"),
        ({"tokenizer_name": "hf://someone/else/spm.model"}, "isn't the name of a file"),
        ({"mimi_config": "../codec.json"}, "isn't the name of a file"),
        ({"tokenizer_name": ""}, "'' isn't the name of a file"),
        ({"model_type": "hibiki"}, "model_type 'hibiki' isn't served"),
        ({"lora_name": "lora.safetensors"}, "lora_name"),
        ({"slots": 0}, r"\$\.slots"),
        ({"lm_gen_config": {"cfg_coef": 3}}, "cfg_coef"),
        ({"sampling": {"top_k": 3}}, "top_k"),
        ({"sampling": {"text_temperature": -1}}, "text_temperature must be finite"),
        ({"mimi_config": {"sample_rate": 24000}}, "Mimi config: .*frame_rate"),
        (SIZES | {"no_such_option": 1}, "unknown option no_such_option"),
        ({"dim": 32}, "config: .*missing"),
        ({"prompt": {"silence": []}}, "silence"),
    ],
)
def test_what_the_config_has_wrong_is_named(tmp_path: Path, config: object, named: str) -> None:
    with pytest.raises(EngineError, match=named):
        read_directory(make(tmp_path, config))


@pytest.mark.parametrize("name", ["config.json", "codec.json"])
def test_what_isnt_json_is_named(tmp_path: Path, name: str) -> None:
    make(tmp_path, SIZES | {"mimi_config": "codec.json"})
    (tmp_path / "codec.json").write_text("{}")
    (tmp_path / name).write_text("{")
    with pytest.raises(EngineError, match=rf"{name}: .*truncated"):
        read_directory(tmp_path)


def test_weights_that_cant_be_read_are_named(tmp_path: Path) -> None:
    (make(tmp_path) / LM).write_bytes(b"nothing")
    with pytest.raises(EngineError, match=rf"{LM}: not a readable safetensors file"):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lm_gen_config": {"temp": 0.5, "top_k_text": 7}}, Sampling(0.7, 7, 0.5, 250)),
        ({"lm_gen_config": {"use_sampling": False}}, Sampling(0, 25, 0, 250)),
        (
            {
                "lm_gen_config": {"temp": 0.5, "temp_text": 0.6, "top_k": 9},
                "sampling": {"audio_temperature": 0.0, "text_top_k": 11},
            },
            Sampling(0.6, 11, 0.0, 9),
        ),
        (
            {"lm_gen_config": {"use_sampling": False}, "sampling": {"text_temperature": 1}},
            Sampling(1, 25, 0, 250),
        ),
    ],
)
def test_defaults_of_sampling(tmp_path: Path, config: object, expected: Sampling) -> None:
    assert read_directory(make(tmp_path, config)).sampling == expected


def test_what_serving_may_say(tmp_path: Path) -> None:
    make(tmp_path)
    assert read_directory(tmp_path, "someone/model").name == "someone/model"
    said = {"name": "Shown", "slots": 7, "default_voice": "ada", "about": "Counts."}
    found = read_directory(make(tmp_path, said), "someone/model")
    assert {key: getattr(found, key) for key in said} == said
    found = read_directory(make(tmp_path, {"examples": ["count to ten", "stop"]}))
    assert found.examples == ("count to ten", "stop")
