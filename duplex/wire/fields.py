"""Reads single settings off a wire into a patch: what every wire protocol has in common.

What is valid but not available here is substituted and said so; what is malformed is an error
that names the field as the client wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

import msgspec

from duplex.errors import SessionError
from duplex.settings import EncodedAudio, SettingsPatch, Substitution
from engine.api import EngineSpec

MAX_REF_AUDIO = 10 << 20
"""Bytes of a reference recording as a file."""

_OPENAI_VOICES = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable")
    + ("marin", "nova", "onyx", "sage", "shimmer", "verse")
)
INPUT_RATES = range(8_000, 48_001)
"""Samples a second that input may have."""
_MAX_PERSONA = 20_000
_MAX_SUBSTITUTIONS = 64
_DATA_URL = re.compile(
    r"data:audio/[\w.+-]{1,64}(;[\w.+-]{1,64}=[\w.+-]{1,64}){0,8};base64,", re.ASCII
)
_VOICE_FILES = ("pt", "wav", "safetensors")


class Reader:
    """Collects what a client set, for a model that `spec` describes."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.patch: dict[str, object] = {}
        self.substitutions: list[Substitution] = []
        self.paths: dict[str, str] = {}
        """Where the client wrote what is in the patch."""
        self.written: list[str] = []
        """The paths of all that was read."""

    def set(self, name: str, path: str, value: object) -> None:
        """Takes a setting into the patch."""
        self.patch[name] = value
        self.paths[name] = path

    def substitute(self, path: str, requested: object, in_force: str | None, why: str) -> None:
        """Notes that something was asked for that isn't here. Raises SessionError for too many."""
        if len(self.substitutions) == _MAX_SUBSTITUTIONS:
            refuse(path, f"More than {_MAX_SUBSTITUTIONS} settings that this server hasn't.")
        shown = requested if isinstance(requested, str) else msgspec.json.encode(requested).decode()
        self.substitutions.append(Substitution(path[:200], shown[:200], in_force, why))

    def result(self) -> tuple[SettingsPatch, tuple[Substitution, ...]]:
        """The patch, and what of it isn't what was asked for."""
        return msgspec.convert(self.patch, SettingsPatch), tuple(self.substitutions)


Field = Callable[[Reader, str, object], None]
"""Reads the value at a path into a reader. Raises SessionError."""


def refuse(path: str, message: str, code: str = "invalid_value") -> NoReturn:
    """Raises the error for the field at `path`."""
    raise SessionError(code, message, param=path)


def string(path: str, value: object) -> str:
    """A string, or SessionError."""
    if not isinstance(value, str):
        refuse(path, f"{path} must be a string.", "invalid_type")
    return value


def number(path: str, value: object, low: float, high: float) -> float:
    """A finite number within bounds, or SessionError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(path, f"{path} must be a number.", "invalid_type")
    if not low <= value <= high:
        refuse(path, f"{path} must be between {low:g} and {high:g}.")
    return float(value)


def integer(path: str, value: object, low: int, high: int) -> int:
    """An integer within bounds, or SessionError."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(path, f"{path} must be an integer.", "invalid_type")
    if not low <= value <= high:
        refuse(path, f"{path} must be between {low} and {high}.")
    return value


def boolean(path: str, value: object) -> bool:
    """True or false, or SessionError."""
    if not isinstance(value, bool):
        refuse(path, f"{path} must be true or false.", "invalid_type")
    return value


def voice(reader: Reader, path: str, value: object) -> None:
    """A name from the registry, never a path; `NATF2.pt` means `NATF2`. Replaces a recording."""
    if isinstance(value, Mapping) and "id" in value:
        value, path = value["id"], f"{path}.id"
    if value is None:
        reader.set("voice", path, None)
        return
    spec, name = reader.spec, string(path, value)
    stem, dot, suffix = name.rpartition(".")
    if dot and suffix in _VOICE_FILES:
        name = stem
    if name in spec.voices:
        _one_voice(reader, path)
        reader.set("voice", path, name)
        if spec.voice_audio:
            reader.patch["voice_audio"] = None
    elif not spec.voices:
        reader.substitute(path, value, None, "The model has one voice.")
    elif name in _OPENAI_VOICES:
        reader.set("voice", path, None)
        reader.substitute(path, value, spec.default_voice, "The model has voices of its own.")
    else:
        refuse(path, f"Unknown voice {name[:100]!r}. The voices here are {', '.join(spec.voices)}.")


def persona(reader: Reader, path: str, value: object) -> None:
    """The text prompt."""
    if value is None or value == "":
        reader.set("persona", path, None)
        return
    text = string(path, value)
    if len(text) > _MAX_PERSONA:
        refuse(path, f"{path} is longer than {_MAX_PERSONA} characters.")
    if reader.spec.persona:
        reader.set("persona", path, text)
    else:
        reader.substitute(path, text, None, "The model takes no instructions.")


def input_rate(reader: Reader, path: str, value: object) -> None:
    """The caller's samples a second."""
    if value is not None:
        rate = integer(path, value, 1, 1_000_000)
        if rate not in INPUT_RATES:
            refuse(path, f"{path} must be between 8000 and 48000.", "unsupported_audio_format")
        reader.set("input_rate", path, rate)


def ref_audio(reader: Reader, path: str, value: object) -> None:
    """A recording of a voice as a data URL, decoded later: that takes time. Replaces a voice."""
    if value is None:
        reader.set("voice_audio", path, None)
        return
    url = string(path, value)
    header = _DATA_URL.match(url)
    if header is None:
        refuse(path, f"{path} must be a URL such as data:audio/wav;base64,….")
    if len(url) - header.end() > -(-MAX_REF_AUDIO // 3) * 4:
        refuse(path, f"{path} is larger than {MAX_REF_AUDIO >> 20} MiB.")
    if reader.spec.voice_audio:
        _one_voice(reader, path)
        reader.patch["voice"] = None
        reader.set("voice_audio", path, EncodedAudio(path, url[header.end() :]))
    else:
        reader.substitute(path, header[0] + "…", None, "The model takes no voice as a recording.")


def _one_voice(reader: Reader, path: str) -> None:
    if reader.patch.get("voice") or reader.patch.get("voice_audio"):
        refuse(path, "A voice is a name or a recording, not both.")


def _sampling(name: str, convert: Callable[[str, object], object]) -> Field:
    def read(reader: Reader, path: str, value: object) -> None:
        converted = None if value is None else convert(path, value)
        if reader.spec.sampling:
            reader.set(name, path, converted)
        elif converted is not None:
            reader.substitute(path, value, None, "The model doesn't sample.")

    return read


_temperature = partial(number, low=0.0, high=2.0)
_top_k = partial(integer, low=1, high=100_000)
_seed = partial(integer, low=0, high=2**63 - 1)

SAMPLING: dict[str, Field] = {
    "seed": _sampling("seed", _seed),
    "audio_temperature": _sampling("audio_temperature", _temperature),
    "audio_top_k": _sampling("audio_top_k", _top_k),
    "text_temperature": _sampling("text_temperature", _temperature),
    "text_top_k": _sampling("text_top_k", _top_k),
}
"""How the model draws its tokens."""
