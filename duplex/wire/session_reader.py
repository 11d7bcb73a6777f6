"""Reads the wire's session object, flat or nested, into a patch of settings.

Flat keys are the beta protocol's and the duplex clients', nested ones those of the GA protocol
(OpenAI's Realtime API reference, session object). Both are read whatever the dialect. What is
valid but not available here is substituted and said so; what is malformed is an error that names
the field as the client wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from duplex.commands import UpdateSession
from duplex.settings import SettingsPatch, Substitution
from duplex.wire.detection_fields import turn_detection
from duplex.wire.fields import (
    SAMPLING,
    Field,
    Reader,
    boolean,
    input_rate,
    integer,
    number,
    persona,
    ref_audio,
    refuse,
    voice,
)
from duplex.wire.format_fields import input_format, output_format, output_sample_rate
from engine.api import EngineSpec

Fields = Mapping[str, "Field | Fields"]
"""Fields by name; a mapping is an object within the object."""

INFINITE = "inf"
_MAX_OUTPUT_TOKENS = 1_000_000


def read_update(
    session: Mapping[str, object], spec: EngineSpec, event_id: str | None = None
) -> UpdateSession:
    """Reads a session object of either shape. Raises SessionError naming the field."""
    reader = Reader(spec)
    read_object(reader, "session", session, _SESSION)
    patch, substitutions = reader.result()
    return UpdateSession(
        event_id=event_id,
        patch=patch,
        substitutions=substitutions,
        written=tuple(reader.written),
        paths=reader.paths,
    )


def read_session(
    session: Mapping[str, object], spec: EngineSpec
) -> tuple[SettingsPatch, tuple[Substitution, ...]]:
    """What a session object sets, and what is not as it says. Raises SessionError."""
    update = read_update(session, spec)
    return update.patch, update.substitutions


def read_object(
    reader: Reader, path: str, value: object, fields: Fields, unknown: Field | None = None
) -> None:
    """Reads an object that may have these fields. Raises SessionError naming the field."""
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object.", "invalid_type")
    for name, item in value.items():
        field, at = fields.get(name, unknown), f"{path}.{name}"
        if field is None:
            refuse(at, f"Unknown setting {at}.", "unknown_parameter")
        if not isinstance(field, Mapping):
            before = len(reader.written)
            field(reader, at, item)
            if len(reader.written) == before:  # else it has said itself what in it was written
                reader.written.append(at)
        elif item is not None:
            read_object(reader, at, item, field)


def no_effect(_: Reader, path: str, value: object) -> None:
    """The server's own, sent back; or what changes nothing on a model without tools."""


def unavailable(in_force: str | None, why: str, *, same: tuple[object, ...] = (None,)) -> Field:
    """What isn't here: anything but `same` is substituted."""

    def read(reader: Reader, path: str, value: object) -> None:
        if value not in same:
            reader.substitute(path, value, in_force, why)

    return read


def modalities(path: str, value: object) -> bool:
    """Whether text alone is wanted, or SessionError."""
    known = ("audio", "text")
    if not isinstance(value, list) or not value or any(item not in known for item in value):
        refuse(path, f'{path} must be ["audio"], ["text"] or both.')
    return "audio" not in value


def output_tokens(path: str, value: object) -> int | None:
    """A number of tokens, None for "inf", or SessionError."""
    return (
        None if value in (None, INFINITE) else integer(path, value, low=1, high=_MAX_OUTPUT_TOKENS)
    )


def tools(_: Reader, path: str, value: object) -> None:
    """None, for a model that has none."""
    if value is not None and not isinstance(value, list):
        refuse(path, f"{path} must be a list.", "invalid_type")
    if value:
        refuse(path, "The model has no tools.", "unsupported_tools")


def _one(name: str, convert: Callable[[str, object], object]) -> Field:
    """A setting with a value."""

    def read(reader: Reader, path: str, value: object) -> None:
        reader.set(name, path, convert(path, value))

    return read


def _optional(name: str, convert: Callable[[str, object], object]) -> Field:
    """A setting that null takes back."""

    def read(reader: Reader, path: str, value: object) -> None:
        reader.set(name, path, None if value is None else convert(path, value))

    return read


def _choice(*choices: str) -> Callable[[str, object], object]:
    def convert(path: str, value: object) -> object:
        if value not in choices:
            refuse(path, f"{path} must be one of {', '.join(choices)}.")
        return value

    return convert


def _type(_: Reader, path: str, value: object) -> None:
    if value not in (None, "realtime"):
        refuse(path, f"{path} must be realtime: there are no other sessions here.")


def _model(reader: Reader, path: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        refuse(path, f"{path} must be a string.", "invalid_type")
    if value != reader.spec.model:
        reader.substitute(path, value, reader.spec.model, "This server serves one model.")


def _speed(reader: Reader, path: str, value: object) -> None:
    if value is not None and number(path, value, 0.25, 1.5) != 1:
        reader.substitute(path, value, "1", "The model speaks at its own pace.")


def _extra_body(reader: Reader, path: str, value: object) -> None:
    if value is not None:
        read_object(reader, path, value, _EXTRA, unavailable(None, "Unknown to this model."))


TOOL_CHOICE = unavailable("none", "The model has no tools.", same=(None, "auto", "none"))
PROMPT = unavailable(None, "There are no stored prompts here; use instructions.")
REASONING = unavailable(None, "The model doesn't reason.")

_transcription = unavailable(None, "Transcription is off on this server.")
_noise_reduction = unavailable(None, "Noise reduction is off on this server.")
_overlap_ms = partial(integer, low=0, high=60_000)

_OURS = ("id", "object", "session_id", "capabilities", "substitutions", "client_secret") + (
    "resume_token",
    "attachment_generation",
    "expires_at",
)
"""The server's own, sent back."""

_EXTRA: Fields = {
    **SAMPLING,
    "return_stage_metrics": _one("stage_metrics", boolean),
    "auto_response": unavailable("true", "The model speaks when it will.", same=(None, True)),
    "force_listen_count": no_effect,
    "duplex_initial_user_text": no_effect,
}

_AUDIO_INPUT: Fields = {
    "format": input_format,
    "sample_rate_hz": input_rate,
    "turn_detection": turn_detection,
    "transcription": _transcription,
    "noise_reduction": _noise_reduction,
}
_AUDIO_OUTPUT: Fields = {
    "format": output_format,
    "sample_rate_hz": output_sample_rate,
    "voice": voice,
    "speed": _speed,
}
_SESSION: Fields = {
    "type": _type,
    "model": _model,
    "voice": voice,
    "speed": _speed,
    "instructions": persona,
    "ref_audio": ref_audio,
    "modalities": _one("output_text_only", modalities),
    "output_modalities": _one("output_text_only", modalities),
    "input_audio_format": input_format,
    "output_audio_format": output_format,
    "sample_rate_hz": input_rate,
    "audio": {"input": _AUDIO_INPUT, "output": _AUDIO_OUTPUT},
    "turn_detection": turn_detection,
    "input_audio_transcription": _transcription,
    "input_audio_noise_reduction": _noise_reduction,
    "max_output_tokens": _one("max_output_tokens", output_tokens),
    "max_response_output_tokens": _one("max_output_tokens", output_tokens),
    "truncation": unavailable("auto", "The oldest items are forgotten.", same=(None, "auto")),
    "tracing": unavailable(None, "Tracing is off on this server."),
    "include": unavailable(None, "Transcription is off on this server.", same=(None, [])),
    "prompt": PROMPT,
    "reasoning": REASONING,
    "tools": tools,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": no_effect,
    "temperature": unavailable(
        None, "Use extra_body.audio_temperature and extra_body.text_temperature."
    ),
    "overlap_policy": _one("overlap_policy", _choice("listen_only", "barge_in_on_speech")),
    "overlap_short_ack_ms": _one("overlap_short_ack_ms", _overlap_ms),
    "overlap_barge_in_ms": _one("overlap_barge_in_ms", _overlap_ms),
    "playback_commit_policy": _one(
        "playback_commit_policy", _choice("ack_only", "commit_all_on_done")
    ),
    "input_clock": _one("input_clock", _choice("client", "server")),
    "idle_timeout_s": _optional("idle_timeout_s", partial(number, low=0.1, high=86_400.0)),
    "extra_body": _extra_body,
    **dict.fromkeys(_OURS, no_effect),
}
