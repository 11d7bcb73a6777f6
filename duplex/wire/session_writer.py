"""Writes the settings in force as the wire's session object."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import asdict

from duplex.settings import Capabilities, Settings, Substitution
from duplex.turns import TurnDetection
from duplex.wire.format_fields import output_rate
from duplex.wire.session_reader import INFINITE
from engine.api import EngineSpec
from media.formats import AudioFormat

MIME = {
    AudioFormat.PCM16: "audio/pcm",
    AudioFormat.PCM_F32LE: "audio/pcm_f32le",
    AudioFormat.G711_ULAW: "audio/pcmu",
    AudioFormat.G711_ALAW: "audio/pcma",
    AudioFormat.WAV: "audio/wav",
}
"""Names of formats in GA session objects; those of OpenAI's are pcm, pcmu and pcma."""

Dialect = Literal["ga", "beta"]


def write_session(
    session_id: str,
    settings: Settings,
    substitutions: tuple[Substitution, ...],
    spec: EngineSpec,
    capabilities: Capabilities | None,
    *,
    dialect: Dialect,
) -> dict[str, Any]:
    """The session object with what is in force, in the dialect's shape."""
    voice = settings.voice or spec.default_voice
    detection = _turn_detection(settings.turn_detection)
    common: dict[str, Any] = {
        "id": session_id,
        "session_id": session_id,
        "object": "realtime.session",
        "model": spec.model,
        "instructions": settings.persona or "",
        "tools": [],
        "tool_choice": "none",
        "truncation": "auto",
        "overlap_policy": settings.overlap_policy,
        "playback_commit_policy": settings.playback_commit_policy,
        "input_clock": settings.input_clock,
        "overlap_short_ack_ms": settings.overlap_short_ack_ms,
        "overlap_barge_in_ms": settings.overlap_barge_in_ms,
        "substitutions": substitutions,
    }
    if capabilities is not None:
        common["capabilities"] = capabilities
    if settings.idle_timeout_s is not None:
        common["idle_timeout_s"] = settings.idle_timeout_s
    limit = settings.max_output_tokens or INFINITE
    if dialect == "beta":
        if voice is not None:
            common["voice"] = voice
        return common | {
            "modalities": ["text"] if settings.output_text_only else ["audio", "text"],
            "input_audio_format": settings.input_format.value,
            "output_audio_format": settings.output_format.value,
            "sample_rate_hz": settings.input_rate,
            "turn_detection": detection,
            "max_response_output_tokens": limit,
        }
    output: dict[str, Any] = {"format": write_output_format(settings, spec), "speed": 1}
    if voice is not None:
        output["voice"] = voice
    return common | {
        "type": "realtime",
        "output_modalities": ["text"] if settings.output_text_only else ["audio"],
        "audio": {
            "input": {
                "format": {"type": MIME[settings.input_format], "rate": settings.input_rate},
                "turn_detection": detection,
            },
            "output": output,
        },
        "max_output_tokens": limit,
    }


def write_output_format(settings: Settings, spec: EngineSpec) -> dict[str, Any]:
    """The format of the agent's audio, as GA objects have it."""
    audio_format = settings.output_format
    return {"type": MIME[audio_format], "rate": output_rate(audio_format, spec)}


def _turn_detection(detection: TurnDetection | None) -> dict[str, Any] | None:
    if detection is None:
        return None
    fields = {name: value for name, value in asdict(detection).items() if value is not None}
    return {"type": "server_vad"} | fields
