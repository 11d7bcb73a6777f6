"""What a voice is, and reading one from a file's bytes."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from engine import loudness
from engine.api import EngineError, Pcm
from engine.lm.prompt import SavedVoice
from media.files import AudioFileError, read_audio

MAX_S: Final = 30.0
"""Longest voice."""

TENSORS: Final = (".safetensors", ".pt")
AUDIO: Final = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a")
SUFFIXES: Final = (*TENSORS, *AUDIO)
"""Known file types. Of one voice in several forms the first here is taken."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A voice that the codec has not heard yet."""

    pcm: Pcm
    """[samples] at the codec's rate, normalised in loudness."""


Voice = Tensor | SavedVoice | Recording
"""Codes [frames, books] int64, a saved state, or a recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceShape:
    """The sizes of a model that its voices must fit."""

    sample_rate: int
    frame_size: int
    books: int
    card: int
    dim: int
    channels: int

    @property
    def max_frames(self) -> int:
        """Frames of the longest voice."""
        return int(MAX_S * self.sample_rate / self.frame_size)


def read_voice(suffix: str, data: bytes, shape: VoiceShape) -> Voice:
    """The voice in a file's bytes; `suffix`, one of SUFFIXES, says what they are.

    Raises EngineError for bytes that aren't that, and for a voice that doesn't fit the model.
    """
    if suffix in AUDIO:
        return _read_recording(suffix, data, shape.sample_rate)
    return _fit(_read_tensors(suffix, data), shape)


def _read_recording(suffix: str, data: bytes, sample_rate: int) -> Recording:
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data)
        file.flush()
        try:
            return recording(read_audio(file.name, sample_rate), sample_rate)
        except AudioFileError as error:
            raise EngineError("not readable as audio") from error
        except ValueError as error:
            raise EngineError(str(error)) from error


def check_recording(pcm: Pcm, sample_rate: int) -> None:
    """Raises ValueError unless `pcm` [samples] is 0.5 to 30 s of finite numbers."""
    seconds = len(pcm) / sample_rate
    if not loudness.MIN_S <= seconds <= MAX_S:
        raise ValueError(f"a voice lasts {loudness.MIN_S:g} to {MAX_S:g} s, not {seconds:.2f}")
    if not np.isfinite(pcm).all():
        raise ValueError("the recording has samples that are no numbers")


def recording(pcm: Pcm, sample_rate: int) -> Recording:
    """A recording [samples]. Raises ValueError for what `check_recording` does, and silence."""
    check_recording(pcm, sample_rate)
    return Recording(loudness.normalise(pcm, sample_rate))


def _read_tensors(suffix: str, data: bytes) -> Mapping[str, Tensor]:
    try:
        if suffix == ".safetensors":
            return safetensors.torch.load(data)
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # A broken file can raise almost anything in their parsers.
        words = str(error).partition("\n")[0]
        raise EngineError(f"not a readable voice: {words}") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise EngineError("not a voice: no dictionary of tensors")
    return found


def _fit(found: Mapping[str, Tensor], shape: VoiceShape) -> Voice:
    names = sorted(found)
    if names == ["codes"]:
        codes = _shaped(found, "codes", (None, shape.books), shape.max_frames)
        return _integers(codes, "codes", shape.card)
    if names == ["cache", "embeddings"]:
        embeddings = _shaped(found, "embeddings", (None, 1, 1, shape.dim), shape.max_frames)
        if not embeddings.is_floating_point():
            raise EngineError(f"embeddings are {embeddings.dtype}, expected floating point")
        cache = _shaped(found, "cache", (1, shape.channels, None), 1)
        return SavedVoice.from_file(embeddings, _integers(cache, "cache", None))
    raise EngineError(f"not a voice: it has {names}, not 'codes' or 'embeddings' and 'cache'")


def _shaped(
    found: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...], most: int
) -> Tensor:
    """The tensor, of that shape (None: any size above 0) and at most `most` long."""
    tensor = found[name]
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(
        size != want if want else size < 1 for size, want in zip(sizes, shape, strict=True)
    ):
        wanted = ", ".join(str(want or "n") for want in shape)
        raise EngineError(f"{name} is {list(sizes)}, expected [{wanted}]")
    if sizes[0] > most:
        raise EngineError(f"{name} has {sizes[0]} frames, at most {most} ({MAX_S:g} s) are taken")
    return tensor


def _integers(tensor: Tensor, name: str, card: int | None) -> Tensor:
    """int64 of integers, below `card` if that is given."""
    if tensor.is_floating_point() or tensor.is_complex():
        raise EngineError(f"{name} are {tensor.dtype}, expected integers")
    if card is not None and not bool(((tensor >= 0) & (tensor < card)).all()):
        raise EngineError(f"{name} must be 0 to {card - 1}")
    return tensor.long()
