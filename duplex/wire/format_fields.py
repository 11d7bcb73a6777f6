"""Reads audio formats and rates off the realtime wire: flat names or nested objects."""

from __future__ import annotations

from collections.abc import Mapping

from duplex.settings import G711, G711_RATE
from duplex.wire.fields import INPUT_RATES, Reader, integer, refuse, string
from engine.api import EngineSpec
from media.formats import AudioFormat, parse_format

_CODE = "unsupported_audio_format"


def output_rate(audio_format: AudioFormat, spec: EngineSpec) -> int:
    """Samples a second of audio in this format: G.711 is 8 kHz, all else the model's own rate."""
    return G711_RATE if audio_format in G711 else spec.sample_rate


def input_format(reader: Reader, path: str, value: object) -> None:
    """`"pcm16"`, or `{"type": "audio/pcm", "rate": 24000}`; a rate alone keeps the format."""
    if value is None:
        return
    name, rate, at = _parts(path, value)
    if name is not None:
        audio_format = _format(at, name)
        if audio_format is AudioFormat.WAV:
            refuse(at, "Input audio can't be wav.", _CODE)
        reader.set("input_format", at, audio_format)
    if rate is not None:
        spoken = integer(f"{path}.rate", rate, 1, 1_000_000)
        if spoken not in INPUT_RATES:
            refuse(f"{path}.rate", f"{path}.rate must be between 8000 and 48000.", _CODE)
        reader.set("input_rate", f"{path}.rate", spoken)


def output_format(reader: Reader, path: str, value: object) -> None:
    """As `input_format`; the rate must be the format's own."""
    if value is None:
        return
    name, rate, at = _parts(path, value)
    if name is not None:
        reader.set("output_format", at, _format(at, name))
    if rate is not None:
        output_sample_rate(reader, f"{path}.rate", rate)


def output_sample_rate(reader: Reader, path: str, value: object) -> None:
    """A rate beside the format: nothing to choose, but it must not be another."""
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
            f"Output audio has {reader.spec.sample_rate} samples a second (G.711: {G711_RATE}).",
            _CODE,
        )


def _parts(path: str, value: object) -> tuple[object, object, str]:
    """The name of a format, its rate, and the path of the name."""
    if isinstance(value, Mapping):
        return value.get("type"), value.get("rate"), f"{path}.type"
    return value, None, path


def _format(path: str, name: object) -> AudioFormat:
    try:
        return parse_format(string(path, name))
    except ValueError as error:
        refuse(path, str(error), _CODE)
