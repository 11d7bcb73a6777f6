import json
import re

import pytest
from lm_models import GOLDENS, TINY, golden_config
from msgspec.structs import replace

from engine.checkpoint import CheckpointError
from engine.lm.config import MOSHI_7B, PERSONAPLEX_7B, LMConfig


def raw() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((GOLDENS / "moshi-tiny/config.json").read_text())
    return loaded


def test_published_dimensions() -> None:
    assert MOSHI_7B.hidden == 11264
    assert MOSHI_7B.depformer_hidden == 2816
    assert MOSHI_7B.head_dim == 128
    assert (MOSHI_7B.books, MOSHI_7B.channels, MOSHI_7B.max_delay) == (8, 17, 1)
    assert (MOSHI_7B.dep_q, PERSONAPLEX_7B.dep_q) == (8, 16)
    # bf16 KV of a session at full context, in bytes.
    assert MOSHI_7B.num_layers * MOSHI_7B.context * 2 * MOSHI_7B.dim * 2 == 1_572_864_000


def test_goldens_are_read() -> None:
    moshi, personaplex = golden_config("moshi-tiny"), golden_config("personaplex-tiny")
    assert (moshi.dim, moshi.context, moshi.card, moshi.text_card) == (32, 24, 128, 64)
    assert (moshi.hidden, moshi.depformer_hidden) == (88, 44)
    assert (personaplex.dep_q, personaplex.books) == (16, 8)
    assert personaplex.prompt.silence_codes[0] == 948


def test_a_ratio_of_exactly_four_is_gated_by_21_eighths() -> None:
    config = replace(TINY, hidden_scale=4, dim=32, depformer_dim=24)
    assert (config.hidden, config.depformer_hidden) == (84, 63)
    config = replace(config, depformer_dim_feedforward=97)
    assert config.depformer_hidden == 64


def test_what_kyutai_s_configs_carry_besides() -> None:
    extra = {
        "model_type": "moshi",
        "moshi_name": "model.safetensors",
        "mimi_name": "mimi.safetensors",
        "tokenizer_name": "tokenizer.model",
        "lm_gen_config": {"temp": 0.8},
        "conditioners": {},
        "cross_attention": False,
        "fuser": {"cross_attention_pos_emb": False, "sum": [], "prepend": [], "cross": []},
        "existing_text_end_padding_id": 0,
        "depformer_causal": True,
        "lora": False,
        "lora_rank": 128,
    }
    assert LMConfig.from_json(raw() | extra) == LMConfig.from_json(raw())


def test_options() -> None:
    prompt = {
        "silence_codes": list(range(8)),
        "user_codes": list(range(1, 9)),
        "silence_frames": 3,
    }
    config = LMConfig.from_json(
        raw()
        | {
            "depformer_weights_per_step_schedule": [0, 0, 0, 0, 1, 1, 1, 1],
            "depformer_low_rank_embeddings": 4,
            "depformer_norm": "rms_norm_f32",
            "prompt": prompt,
        }
    )
    assert config.schedule == (0, 0, 0, 0, 1, 1, 1, 1)
    assert config.prompt.user_codes == tuple(range(1, 9))
    assert config.prompt.silence_frames == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rotary_fraction": 0.5}, "unknown option rotary_fraction"),
        ({"norm": "layer_norm"}, "norm='layer_norm' isn't supported"),
        ({"gating": "gelu"}, "gating='gelu' isn't supported"),
        ({"layer_scale": 0.1}, "layer_scale=0.1 isn't supported"),
        ({"causal": False}, "causal=False isn't supported"),
        ({"depformer_pos_emb": "sin"}, "depformer_pos_emb='sin' isn't supported"),
        ({"depformer_multi_linear": False}, "depformer_multi_linear=False isn't supported"),
        ({"depformer_norm": "layer_norm"}, "depformer_norm='layer_norm' isn't supported"),
        ({"conditioners": {"cfg": {}}}, "conditioners={'cfg': {}} isn't supported"),
        ({"fuser": {"sum": ["cfg"], "prepend": [], "cross": []}}, "fuser with conditions isn't"),
        ({"lora": True}, "lora=True isn't supported"),
        ({"extra_heads_num_heads": 4}, "extra_heads_num_heads=4 isn't supported"),
        ({"dim": "wide"}, "Expected `int`, got `str` - at `$.dim`"),
        ({"dim": 0}, "dim must be positive, not 0"),
        ({"context": -1}, "context must be positive, not -1"),
        ({"dim": 34}, "dim must be a multiple of num_heads"),
        ({"depformer_dim": 15}, "depformer_dim must be a multiple of depformer_num_heads"),
        ({"num_heads": 32}, "dim / num_heads must be even"),
        ({"n_q": 15}, "n_q must be even"),
        ({"dep_q": 7}, "dep_q must be between n_q / 2 and n_q"),
        ({"delays": [0] * 16}, "delays must be 1 + n_q numbers"),
        ({"delays": [-1] + [0] * 16}, "delays must be 1 + n_q numbers, none below 0"),
        ({"depformer_weights_per_step_schedule": [0]}, "depformer_weights_per_step_schedule"),
        ({"depformer_low_rank_embeddings": 0}, "depformer_low_rank_embeddings must be positive"),
        ({"existing_text_padding_id": 64}, "existing_text_padding_id must be below text_card"),
        ({"prompt": {"silence_codes": [1]}}, "prompt.silence_codes must be 8 codes below 128"),
        ({"prompt": {"silence_frames": -1}}, "prompt.silence_frames must not be below 0"),
        ({"prompt": {"noise_frames": 1}}, "noise_frames"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], message: str) -> None:
    small = {"silence_codes": list(range(8)), "user_codes": list(range(8))}
    if isinstance(change.get("prompt"), dict):
        change = {"prompt": small | change["prompt"]}
    with pytest.raises(CheckpointError, match=re.escape(message)):
        LMConfig.from_json(raw() | change)


def test_a_missing_dimension_is_named() -> None:
    values = raw()
    del values["num_layers"]
    with pytest.raises(CheckpointError, match="num_layers"):
        LMConfig.from_json(values)
