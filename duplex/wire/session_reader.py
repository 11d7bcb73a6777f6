"""Reads the wire's session object, flat or nested, into a patch of settings.

Flat keys are the beta protocol's and the duplex clients', nested ones those of the GA protocol
(OpenAI's Realtime API reference, session object). Both are read whatever the dialect. What is
valid but not available here is substituted and said so; what is malformed is an error that names
the field as the client wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from duplex.settings import SettingsPatch, Substitution
from duplex.turns import TurnDetection
from duplex.wire.fields import (
    INPUT_RATES,
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
    string,
    voice,
)
from engine.api import EngineSpec
from media.formats import AudioFormat, parse_format

G711 = frozenset((AudioFormat.G711_ULAW, AudioFormat.G711_ALAW))
G711_RATE = 8_000

_NO_EFFECT = frozenset(
    ("id", "object", "type", "expires_at", "include", "truncation", "tool_choice", "prompt")
    + ("max_output_tokens", "max_response_output_tokens", "session_id", "capabilities")
    + ("substitutions", "client_secret", "resume_token", "attachment_generation", "speed")
)
"""Known, and without effect on a lockstep model; or the server's own, sent back."""
_EXTRA_NO_EFFECT = frozenset(("auto_response", "force_listen_count", "duplex_initial_user_text"))


def read_session(
    session: Mapping[str, object], spec: EngineSpec
) -> tuple[SettingsPatch, tuple[Substitution, ...]]:
    """Reads a session object of either shape. Raises SessionError naming the field."""
    reader = Reader(spec)
    _object(reader, "session", session, _SESSION)
    return reader.result()


def _object(reader: Reader, path: str, value: object, fields: Mapping[str, Field]) -> None:
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object.")
    for name, item in value.items():
        field = fields.get(name)
        if field is not None:
            field(reader, f"{path}.{name}", item)
        elif name not in _NO_EFFECT:
            refuse(f"{path}.{name}", f"Unknown setting {path}.{name}.", "unknown_parameter")


def _model(reader: Reader, path: str, value: object) -> None:
    if value is not None and string(path, value) != reader.spec.model:
        reader.substitute(path, value, reader.spec.model, "This server serves one model.")


def _audio_format(reader: Reader, path: str, value: object) -> AudioFormat:
    """Reads `"pcm16"` or `{"type": "audio/pcm", "rate": 24000}`."""
    rate: object = None
    if isinstance(value, Mapping):
        rate = value.get("rate")
        path, value = f"{path}.type", value.get("type")
    try:
        audio_format = parse_format(string(path, value))
    except ValueError as error:
        refuse(path, str(error), "unsupported_audio_format")
    if rate is not None:
        _rate_of(reader, path.removesuffix(".type") + ".rate", rate, audio_format)
    return audio_format


def _rate_of(reader: Reader, path: str, value: object, audio_format: AudioFormat) -> None:
    native = output_rate(audio_format, reader.spec)
    rate = integer(path, value, 1, 1_000_000)
    if path.startswith(("session.audio.output", "session.output")):
        if rate != native:
            refuse(
                path,
                f"{path} must be {native} for {audio_format.value}.",
                "unsupported_audio_format",
            )
    elif rate not in INPUT_RATES:
        refuse(path, f"{path} must be between 8000 and 48000.", "unsupported_audio_format")
    else:
        reader.patch["input_rate"] = rate


def output_rate(audio_format: AudioFormat, spec: EngineSpec) -> int:
    """Samples a second of audio in this format: G.711 is 8 kHz, all else the model's own rate."""
    return G711_RATE if audio_format in G711 else spec.sample_rate


def _input_format(reader: Reader, path: str, value: object) -> None:
    if value is None:
        return
    audio_format = _audio_format(reader, path, value)
    if audio_format is AudioFormat.WAV:
        refuse(path, "Input audio can't be wav.", "unsupported_audio_format")
    reader.patch["input_format"] = audio_format
    if audio_format in G711 and "input_rate" not in reader.patch:
        reader.patch["input_rate"] = G711_RATE


def _output_format(reader: Reader, path: str, value: object) -> None:
    if value is not None:
        reader.patch["output_format"] = _audio_format(reader, path, value)


def _output_rate(reader: Reader, path: str, value: object) -> None:
    if value is None:
        return
    audio_format = reader.patch.get("output_format")
    rate = integer(path, value, 1, 1_000_000)
    allowed = (
        {output_rate(audio_format, reader.spec)}
        if isinstance(audio_format, AudioFormat)
        else {reader.spec.sample_rate, G711_RATE}
    )
    if rate not in allowed:
        refuse(
            path,
            f"Output audio has {reader.spec.sample_rate} samples a second (G.711: 8000).",
            "unsupported_audio_format",
        )


def _modalities(reader: Reader, path: str, value: object) -> None:
    known = ("audio", "text")
    if not isinstance(value, list) or not value or any(item not in known for item in value):
        refuse(path, f'{path} must be ["audio"], ["text"] or both.')
    reader.patch["output_text_only"] = "audio" not in value


def _choice(name: str, *choices: str) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        if value not in choices:
            refuse(path, f"{path} must be one of {', '.join(choices)}.")
        reader.patch[name] = value

    return read


def _optional(name: str, convert: Callable[[str, object], object]) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        reader.patch[name] = None if value is None else convert(path, value)

    return read


def _unavailable(why: str) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        if value is not None and value is not False:
            reader.substitute(path, value, None, why)

    return read


def _turn_detection(reader: Reader, path: str, value: object) -> None:
    if value is None:
        reader.patch["turn_detection"] = None
        return
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object or null.", "invalid_type")
    kind = value.get("type", "server_vad")
    if kind == "semantic_vad":
        reader.substitute(f"{path}.type", kind, "server_vad", "There is no end-of-turn model here.")
    elif kind != "server_vad":
        refuse(f"{path}.type", f"Unknown turn detection {kind!r}.", "unsupported_turn_detection")
    fields: dict[str, Any] = {}
    for name, item in value.items():
        field = _DETECTION.get(name)
        if field is not None and item is not None:
            fields[name] = field(f"{path}.{name}", item)
        elif name not in ("type", "eagerness", "idle_timeout_ms"):
            refuse(f"{path}.{name}", f"Unknown setting {path}.{name}.", "unknown_parameter")
    reader.patch["turn_detection"] = TurnDetection(**fields)


def _tools(reader: Reader, path: str, value: object) -> None:
    if not isinstance(value, list):
        refuse(path, f"{path} must be a list.", "invalid_type")
    if value:
        refuse(path, "The model has no tools.", "unsupported_tools")


def _flag(name: str) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        reader.patch[name] = boolean(path, value)

    return read


def _overlap_ms(name: str) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        reader.patch[name] = integer(path, value, 0, 60_000)

    return read


def _nested(fields: Mapping[str, Field]) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        if value is not None:
            _object(reader, path, value, fields)

    return read


def _extra_body(reader: Reader, path: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object.", "invalid_type")
    for name, item in value.items():
        field = _EXTRA.get(name)
        if field is not None:
            field(reader, f"{path}.{name}", item)
        elif name not in _EXTRA_NO_EFFECT:
            reader.substitute(f"{path}.{name}", item, None, "Unknown to this model.")


_timeout = partial(number, low=0.1, high=86_400.0)
_transcription = _unavailable("Transcription is off on this server.")
_noise_reduction = _unavailable("Noise reduction is off on this server.")
_tracing = _unavailable("Tracing is off on this server.")

_DETECTION: dict[str, Callable[[str, object], object]] = {
    "threshold": partial(number, low=0.0, high=1.0),
    "prefix_padding_ms": partial(integer, low=0, high=5_000),
    "silence_duration_ms": partial(integer, low=0, high=60_000),
    "create_response": boolean,
    "interrupt_response": boolean,
    "idle_timeout_ms": partial(integer, low=1_000, high=600_000),
}

_EXTRA: dict[str, Field] = SAMPLING | {"return_stage_metrics": _flag("stage_metrics")}

_AUDIO_INPUT: dict[str, Field] = {
    "format": _input_format,
    "sample_rate_hz": input_rate,
    "turn_detection": _turn_detection,
    "transcription": _transcription,
    "noise_reduction": _noise_reduction,
}
_AUDIO_OUTPUT: dict[str, Field] = {
    "format": _output_format,
    "sample_rate_hz": _output_rate,
    "voice": voice,
}
_SESSION: dict[str, Field] = {
    "model": _model,
    "voice": voice,
    "instructions": persona,
    "ref_audio": ref_audio,
    "modalities": _modalities,
    "output_modalities": _modalities,
    "input_audio_format": _input_format,
    "output_audio_format": _output_format,
    "sample_rate_hz": input_rate,
    "audio": _nested({"input": _nested(_AUDIO_INPUT), "output": _nested(_AUDIO_OUTPUT)}),
    "turn_detection": _turn_detection,
    "input_audio_transcription": _transcription,
    "input_audio_noise_reduction": _noise_reduction,
    "tracing": _tracing,
    "tools": _tools,
    "temperature": _unavailable(
        "Use extra_body.audio_temperature and extra_body.text_temperature."
    ),
    "overlap_policy": _choice("overlap_policy", "listen_only", "barge_in_on_speech"),
    "playback_commit_policy": _choice("playback_commit_policy", "ack_only", "commit_all_on_done"),
    "input_clock": _choice("input_clock", "client", "server"),
    "overlap_short_ack_ms": _overlap_ms("overlap_short_ack_ms"),
    "overlap_barge_in_ms": _overlap_ms("overlap_barge_in_ms"),
    "idle_timeout_s": _optional("idle_timeout_s", _timeout),
    "extra_body": _extra_body,
}
