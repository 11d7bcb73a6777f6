"""What an RQ-transformer is made of, read from Kyutai's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.checkpoint import CheckpointError
from engine.lm.prompt import PromptCodes

_FIXED: Mapping[str, tuple[object, ...]] = {
    "bias_proj": (False,),
    "causal": (True,),
    "conditioners": (None, {}),
    "cross_attention": (False,),
    "demux_second_stream": (False,),
    "demux_second_text_stream": (False,),
    "depformer_gating": ("silu",),
    "depformer_layer_scale": (None,),
    "depformer_multi_linear": (True,),
    "depformer_pos_emb": ("none",),
    "depformer_weights_per_step": (True,),
    "extra_heads_num_heads": (0,),
    "gating": ("silu",),
    "kv_repeat": (1,),
    "layer_scale": (None,),
    "lora": (False,),
    "norm": ("rms_norm_f32",),
    "norm_emb": (False,),
    "positional_embedding": ("rope",),
    "quantize": (False,),
}
"""Options of the architecture, with the only values that are supported."""

_ELSEWHERE = frozenset(
    {
        # The directory loader's.
        "lm_gen_config",
        "lora_name",
        "mimi_config_name",
        "mimi_name",
        "model_id",
        "model_type",
        "moshi_name",
        "stt_config",
        "tokenizer_name",
        "tts_config",
        # Without effect: the depformer has no positions, and its whole frame is its context.
        "depformer_causal",
        "depformer_context",
        "depformer_max_period",
        # Only with `lora` or `extra_heads_num_heads`.
        "extra_heads_dim",
        "lora_rank",
        "lora_scaling",
        # The text that a session shows.
        "existing_text_end_padding_id",
    }
)


class LMConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions of one model. Channels: text, then `books` agent books, then `books` user books.

    Raises CheckpointError, naming the field, if the dimensions contradict each other.
    """

    dim: int
    num_heads: int
    num_layers: int
    hidden_scale: float
    context: int
    """Positions (frames) that the temporal transformer sees, the newest included."""
    card: int
    """Entries of a codebook; also its initial token."""
    text_card: int
    """Text tokens; also the initial one."""
    n_q: int
    """Codebooks of agent and user together."""
    dep_q: int
    """Depformer steps in the checkpoint; serving runs the first `books`."""
    delays: tuple[int, ...]
    """Frames by which each channel comes late: [1 + n_q]."""
    depformer_dim: int
    depformer_num_heads: int
    depformer_num_layers: int
    depformer_dim_feedforward: int | None = None
    """None: `hidden_scale` times `depformer_dim`."""
    depformer_weights_per_step_schedule: tuple[int, ...] | None = None
    """The weights that each depformer step uses: [dep_q]. None: each its own."""
    depformer_low_rank_embeddings: int | None = None
    depformer_norm: str | None = None
    """None, or "rms_norm_f32": the norm before the depformer's heads."""
    max_period: float = 10000.0
    existing_text_padding_id: int = 3
    prompt: PromptCodes = PromptCodes()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name != "existing_text_padding_id" and isinstance(value, int | float) and value <= 0:
                raise CheckpointError(f"config: {name} must be positive, not {value}")
        if not 0 <= self.existing_text_padding_id < self.text_card:
            raise CheckpointError("config: existing_text_padding_id must be below text_card")
        for dim, heads in (("dim", "num_heads"), ("depformer_dim", "depformer_num_heads")):
            if getattr(self, dim) % getattr(self, heads):
                raise CheckpointError(f"config: {dim} must be a multiple of {heads}")
        if self.head_dim % 2:
            raise CheckpointError("config: dim / num_heads must be even")
        if self.n_q % 2:
            raise CheckpointError("config: n_q must be even: agent and user books")
        if not self.books <= self.dep_q <= self.n_q:
            raise CheckpointError("config: dep_q must be between n_q / 2 and n_q")
        if len(self.delays) != 1 + self.n_q or min(self.delays) < 0:
            raise CheckpointError("config: delays must be 1 + n_q numbers, none below 0")
        if len(self.schedule) != self.dep_q or min(self.schedule) < 0:
            raise CheckpointError(
                "config: depformer_weights_per_step_schedule must be dep_q indices"
            )
        if self.depformer_norm not in (None, "rms_norm_f32"):
            raise CheckpointError(f"config: depformer_norm={self.depformer_norm!r} isn't supported")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LMConfig:
        """Reads a parsed `config.json`; what the directory loader needs of it is left to that.

        Raises CheckpointError, naming the option, if one is unknown, missing, of a wrong type or
        asks for what isn't supported.
        """
        own: dict[str, Any] = {}
        for name, value in values.items():
            if name in cls.__struct_fields__:
                own[name] = value
            elif name == "fuser":
                if value and any(value.get(kind) for kind in ("sum", "prepend", "cross")):
                    raise CheckpointError("config: fuser with conditions isn't supported")
            elif name in _FIXED:
                if value not in _FIXED[name]:
                    raise CheckpointError(f"config: {name}={value!r} isn't supported")
            elif name not in _ELSEWHERE:
                raise CheckpointError(f"config: unknown option {name}")
        try:
            config = msgspec.convert(own, cls)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"config: {error}") from error
        if "prompt" in own:
            config.prompt.check(config.books, config.card)
        return config

    @property
    def books(self) -> int:
        """Codebooks of the agent, and as many of the user."""
        return self.n_q // 2

    @property
    def channels(self) -> int:
        """Text and all codebooks."""
        return 1 + self.n_q

    @property
    def max_delay(self) -> int:
        """Frames from a code's step to its frame's output."""
        return max(self.delays)

    @property
    def head_dim(self) -> int:
        """Of the temporal transformer."""
        return self.dim // self.num_heads

    @property
    def hidden(self) -> int:
        """Gated width of the temporal feed-forward."""
        return _gated(self.dim, int(self.hidden_scale * self.dim))

    @property
    def depformer_hidden(self) -> int:
        """Gated width of the depformer's feed-forward."""
        feedforward = self.depformer_dim_feedforward
        if feedforward is None:
            feedforward = int(self.hidden_scale * self.depformer_dim)
        return _gated(self.depformer_dim, feedforward)

    @property
    def schedule(self) -> tuple[int, ...]:
        """Index of the weights of each depformer step: [dep_q]."""
        schedule = self.depformer_weights_per_step_schedule
        return tuple(range(self.dep_q)) if schedule is None else schedule


def _gated(dim: int, feedforward: int) -> int:
    """Width of a gated feed-forward with about as many weights as an ungated one.

    Source: `ActivationGating` of the public moshi package, the case of exactly 4 included.
    """
    return 21 * dim // 8 if feedforward == 4 * dim else 2 * feedforward // 3


MOSHI_7B = LMConfig(
    dim=4096,
    num_heads=32,
    num_layers=32,
    hidden_scale=4.125,
    context=3000,
    card=2048,
    text_card=32000,
    n_q=16,
    dep_q=8,
    delays=(0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1),
    depformer_dim=1024,
    depformer_num_heads=16,
    depformer_num_layers=6,
)
"""Moshi as published, without a config.json."""

PERSONAPLEX_7B = msgspec.structs.replace(MOSHI_7B, dep_q=16)
"""PersonaPlex as published, without a config.json."""
