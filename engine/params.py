"""What a session may ask of an RQ-transformer, checked field by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.api import BadParams, OpenParams
from engine.lm.config import LMConfig
from engine.sampling import Sampling

MAX_TEMPERATURE: Final = 2
MAX_SEED: Final = (1 << 63) - 1

_PROMPT: Final = ("voice", "persona", "voice_audio")


def check_sampling(params: OpenParams, config: LMConfig) -> None:
    """Raises BadParams for a temperature, top-k or seed out of range."""
    for field, value, low, high in (
        ("text_temperature", params.text_temperature, 0, MAX_TEMPERATURE),
        ("audio_temperature", params.audio_temperature, 0, MAX_TEMPERATURE),
        ("text_top_k", params.text_top_k, 1, config.text_card),
        ("audio_top_k", params.audio_top_k, 1, config.card),
        ("seed", params.seed, 0, MAX_SEED),
    ):
        # NaN is in no range.
        if value is not None and not low <= value <= high:
            raise BadParams(field, f"{field} must be {low} to {high}, not {value}")


def check_no_prompt(params: OpenParams, model: str) -> None:
    """Raises BadParams for a voice or persona, since `model` takes none."""
    for field in _PROMPT:
        if getattr(params, field) is not None:
            raise BadParams(field, f"the model {model} takes no {field}")


def sampling_of(params: OpenParams, default: Sampling) -> Sampling:
    """The sampling of a session: what it names, else what `default` says."""
    named = {
        field: value for field in default.__slots__ if (value := getattr(params, field)) is not None
    }
    return replace(default, **named)
