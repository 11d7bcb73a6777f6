"""Reads what a client wants of one response: the `response` of `response.create`.

A lockstep model has its persona, voice and history from before; what of the session's settings
can't be changed for one response is substituted, and `response.created` says so. What would have
to be made beside the conversation is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duplex.commands import CreateResponse
from duplex.wire.fields import Field, Reader, refuse
from duplex.wire.session_reader import (
    PROMPT,
    REASONING,
    TOOL_CHOICE,
    Fields,
    modalities,
    no_effect,
    output_tokens,
    read_object,
    tools,
    unavailable,
)
from engine.api import EngineSpec

_MAX_PAIRS = 16
_MAX_KEY = 64
_MAX_VALUE = 512


def read_response(
    response: Mapping[str, object] | None, spec: EngineSpec, event_id: str | None = None
) -> CreateResponse:
    """Reads the object, of either dialect. Raises SessionError naming the field."""
    reader = Reader(spec)
    if response is not None:
        read_object(reader, "response", response, _RESPONSE)
    found: dict[str, Any] = reader.patch
    return CreateResponse(event_id=event_id, substitutions=tuple(reader.substitutions), **found)


def _text_only(reader: Reader, path: str, value: object) -> None:
    if value is not None:
        reader.set("text_only", path, modalities(path, value))


def _max_output_tokens(reader: Reader, path: str, value: object) -> None:
    if value is not None:
        reader.set("max_output_tokens", path, output_tokens(path, value))


def _metadata(reader: Reader, path: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or len(value) > _MAX_PAIRS:
        refuse(path, f"{path} must be an object of at most {_MAX_PAIRS} texts.")
    for name, text in value.items():
        if len(name) > _MAX_KEY or not isinstance(text, str) or len(text) > _MAX_VALUE:
            refuse(
                f"{path}.{name[:_MAX_KEY]}",
                f"Names in {path} have at most {_MAX_KEY} characters, texts {_MAX_VALUE}.",
            )
    reader.set("metadata", path, dict(value))


def _conversation(_: Reader, path: str, value: object) -> None:
    if value not in (None, "auto"):
        refuse(path, "The model answers in its one conversation only.")


def _input(_: Reader, path: str, value: object) -> None:
    if value is not None:
        refuse(path, "The model answers what it has heard, not other items.")


_as_it_is = "It is as the session has it."
_instructions = unavailable(None, "The model's instructions are the session's.", same=(None, ""))
_session_only: Field = unavailable(None, _as_it_is)

_RESPONSE: Fields = {
    "modalities": _text_only,
    "output_modalities": _text_only,
    "max_output_tokens": _max_output_tokens,
    "max_response_output_tokens": _max_output_tokens,
    "metadata": _metadata,
    "conversation": _conversation,
    "input": _input,
    "instructions": _instructions,
    "voice": _session_only,
    "output_audio_format": _session_only,
    "temperature": _session_only,
    "audio": {"output": {"voice": _session_only, "format": _session_only, "speed": _session_only}},
    "prompt": PROMPT,
    "reasoning": REASONING,
    "tools": tools,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": no_effect,
}
