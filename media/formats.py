"""Sample formats on the wire, to and from float32.

A sample of 16-bit audio is n / 32768, so 16-bit audio comes back bit for bit; what does not fit
is clipped. float32 goes through untouched. G.711 is a table lookup both ways (`media.g711`).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from media.g711 import ALAW_DECODE, ALAW_ENCODE, ULAW_DECODE, ULAW_ENCODE
from media.wav import Subtype, wav_header

Pcm = npt.NDArray[np.float32]
"""Mono samples, nominally in [-1, 1]."""

_TO_FLOAT = np.float32(1 / 32768)
_TO_INT = np.float32(32768)
_LEAST, _MOST = np.float32(-32768), np.float32(32767)


class BadAudio(ValueError):
    """Audio that can't be taken as what it says it is. What it was given to is unchanged."""


class UnsupportedFormat(BadAudio):
    """A sample format or rate that isn't spoken here."""


class AudioFormat(StrEnum):
    """How samples are written on the wire. All are mono and little-endian."""

    PCM16 = "pcm16"
    PCM_F32LE = "pcm_f32le"
    G711_ULAW = "g711_ulaw"
    G711_ALAW = "g711_alaw"
    WAV = "wav"
    """A complete 16-bit WAV each time. Output only."""


INPUT_FORMATS = frozenset(AudioFormat) - {AudioFormat.WAV}
OUTPUT_FORMATS = frozenset(AudioFormat)

_NAMES = {
    **{format.value: format for format in AudioFormat},
    "pcm_s16le": AudioFormat.PCM16,
    "s16le": AudioFormat.PCM16,
    "audio/pcm": AudioFormat.PCM16,
    "audio/pcmu": AudioFormat.G711_ULAW,
    "audio/pcma": AudioFormat.G711_ALAW,
    "audio/pcm_f32le": AudioFormat.PCM_F32LE,
    "audio/wav": AudioFormat.WAV,
}


def parse_format(name: str) -> AudioFormat:
    """The format of a name or alias as protocols write it. Raises UnsupportedFormat."""
    try:
        return _NAMES[name]
    except KeyError:
        known = ", ".join(_NAMES)
        raise UnsupportedFormat(f"unknown audio format {name!r}; known are {known}") from None


def sample_width(format: AudioFormat) -> int:
    """Bytes of one sample on the wire."""
    match format:
        case AudioFormat.PCM16 | AudioFormat.WAV:
            return 2
        case AudioFormat.PCM_F32LE:
            return 4
        case AudioFormat.G711_ULAW | AudioFormat.G711_ALAW:
            return 1


def check(format: AudioFormat, data: bytes | memoryview) -> None:
    """Raises as `decode` would, of data and of any whole samples of them."""
    if format is AudioFormat.PCM_F32LE or format is AudioFormat.WAV:
        decode(format, data)
    else:
        _check_whole(format, data)


def decode(format: AudioFormat, data: bytes | memoryview) -> Pcm:
    """Wire bytes to samples. The result may be a read-only view of `data`.

    Raises BadAudio for bytes that are no whole number of samples, and for NaN or infinity;
    UnsupportedFormat for a format that is output only.
    """
    match format:
        case AudioFormat.PCM16:
            _check_whole(format, data)
            return np.frombuffer(data, "<i2") * _TO_FLOAT
        case AudioFormat.PCM_F32LE:
            _check_whole(format, data)
            pcm = np.frombuffer(data, "<f4")
            if not np.isfinite(pcm).all():
                raise BadAudio("pcm_f32le holds NaN or infinity")
            return pcm
        case AudioFormat.G711_ULAW:
            return ULAW_DECODE[np.frombuffer(data, np.uint8)]
        case AudioFormat.G711_ALAW:
            return ALAW_DECODE[np.frombuffer(data, np.uint8)]
        case AudioFormat.WAV:
            raise UnsupportedFormat("wav is an output format; send pcm16 or pcm_f32le")


def encode(format: AudioFormat, pcm: Pcm, rate: int = 24000) -> bytes:
    """Finite samples to wire bytes. `rate` (Hz) is written into a WAV, the others have none."""
    match format:
        case AudioFormat.PCM16:
            return to_int16(pcm).tobytes()
        case AudioFormat.PCM_F32LE:
            return pcm.astype("<f4", copy=False).tobytes()
        case AudioFormat.G711_ULAW:
            return ULAW_ENCODE[to_int16(pcm).view(np.uint16)].tobytes()
        case AudioFormat.G711_ALAW:
            return ALAW_ENCODE[to_int16(pcm).view(np.uint16)].tobytes()
        case AudioFormat.WAV:
            return wav_header(rate, Subtype.PCM16, len(pcm)) + to_int16(pcm).tobytes()


def to_int16(pcm: Pcm) -> npt.NDArray[np.int16]:
    """Rounds to the nearest 16-bit value and clips."""
    scaled = pcm * _TO_INT
    np.rint(scaled, out=scaled)
    scaled.clip(_LEAST, _MOST, out=scaled)
    return scaled.astype("<i2")


def _check_whole(format: AudioFormat, data: bytes | memoryview) -> None:
    width = sample_width(format)
    if len(data) % width:
        raise BadAudio(
            f"{len(data)} bytes of {format.value} are no whole number of {width}-byte samples"
        )
