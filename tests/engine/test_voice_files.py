"""Voices in files of every kind."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pyloudnorm
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from engine.api import EngineError
from engine.lm.prompt import SavedVoice
from engine.voice_files import AUDIO, MAX_S, Recording, VoiceShape, read_voice, recording
from media.files import write_wav

RATE = 24_000
SHAPE = VoiceShape(sample_rate=RATE, frame_size=1920, books=8, card=64, dim=16, channels=17)
CODES = torch.arange(5 * 8).view(5, 8)
EMBEDDINGS = torch.randn(4, 1, 1, 16, generator=torch.Generator().manual_seed(0))
CACHE = torch.arange(17 * 4).view(1, 17, 4)


def pt(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def noise(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, int(rate * seconds)).astype(np.float32)


@pytest.mark.parametrize(("suffix", "write"), [(".safetensors", save), (".pt", pt)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_codes(suffix: str, write: Callable[[object], bytes], dtype: torch.dtype) -> None:
    voice = read_voice(suffix, write({"codes": CODES.to(dtype)}), SHAPE)
    assert isinstance(voice, Tensor)
    assert voice.dtype == torch.int64
    assert torch.equal(voice, CODES)


@pytest.mark.parametrize(("suffix", "write"), [(".safetensors", save), (".pt", pt)])
def test_saved_voices(suffix: str, write: Callable[[object], bytes]) -> None:
    saved = {"embeddings": EMBEDDINGS.bfloat16(), "cache": CACHE.int()}
    voice = read_voice(suffix, write(saved), SHAPE)
    assert isinstance(voice, SavedVoice)
    assert torch.equal(voice.embeddings, EMBEDDINGS[:, 0, 0].bfloat16())
    assert torch.equal(voice.cache, CACHE[0])


@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_recordings_are_resampled_and_normalised(tmp_path: Path, rate: int) -> None:
    write_wav(tmp_path / "voice.wav", noise(1, rate), rate, "float")
    voice = read_voice(".wav", (tmp_path / "voice.wav").read_bytes(), SHAPE)
    assert isinstance(voice, Recording)
    assert len(voice.pcm) == pytest.approx(RATE, abs=2)
    loudness = pyloudnorm.Meter(RATE).integrated_loudness(voice.pcm)
    assert loudness == pytest.approx(-24, abs=0.1)


def test_every_kind_of_recording_is_read(tmp_path: Path) -> None:
    kinds = {".wav": "pcm_s16le", ".flac": "flac", ".ogg": "libopus", ".opus": "libopus"}
    kinds |= {".mp3": "libmp3lame", ".m4a": "aac"}
    assert kinds.keys() == set(AUDIO)
    pcm = noise(1, 48_000)
    for suffix, codec in kinds.items():
        path = tmp_path / f"voice{suffix}"
        with av.open(path, "w") as container:
            stream = container.add_stream(codec, rate=48_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(pcm[None], format="fltp", layout="mono")
            frame.sample_rate = 48_000
            for packet in (*stream.encode(frame), *stream.encode(None)):
                container.mux(packet)
        voice = read_voice(suffix, path.read_bytes(), SHAPE)
        assert isinstance(voice, Recording)
        assert len(voice.pcm) == pytest.approx(RATE, rel=0.1), suffix


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for data in (pt({"codes": Evil(trace)}), pickle.dumps(Evil(trace), protocol=2)):
        with pytest.raises(EngineError, match="not a readable voice"):
            read_voice(".pt", data, SHAPE)
    assert not trace.exists()


def saved(**changed: Tensor) -> bytes:
    return save({"embeddings": EMBEDDINGS, "cache": CACHE} | changed)


@pytest.mark.parametrize(
    ("suffix", "data", "said"),
    [
        (".safetensors", b"", "not a readable voice"),
        (".pt", b"", "not a readable voice"),
        (".pt", b"PK\x03\x04", "not a readable voice"),
        (".pt", pt([CODES]), "no dictionary of tensors"),
        (".pt", pt({"codes": [1, 2]}), "no dictionary of tensors"),
        (".safetensors", save({"kodes": CODES}), r"it has \['kodes'\]"),
        (".safetensors", save({"embeddings": EMBEDDINGS}), r"it has \['embeddings'\]"),
        (".safetensors", save({"codes": CODES[:, :7].clone()}), r"codes is \[5, 7\], .* \[n, 8\]"),
        (".safetensors", save({"codes": CODES[:0]}), r"codes is \[0, 8\], expected \[n, 8\]"),
        (".safetensors", save({"codes": CODES.float()}), "codes are torch.float32"),
        (".safetensors", save({"codes": CODES + 25}), "codes must be 0 to 63"),
        (".safetensors", save({"codes": CODES - 1}), "codes must be 0 to 63"),
        (".safetensors", save({"codes": CODES.repeat(76, 1)}), "380 frames, at most 375"),
        (".safetensors", saved(embeddings=EMBEDDINGS[:, 0]), r"embeddings is \[4, 1, 16\]"),
        (".safetensors", saved(embeddings=EMBEDDINGS[..., :8].clone()), r"\[n, 1, 1, 16\]"),
        (".safetensors", saved(embeddings=EMBEDDINGS.long()), "embeddings are torch.int64"),
        (".safetensors", saved(embeddings=EMBEDDINGS.repeat(94, 1, 1, 1)), "376 frames"),
        (".safetensors", saved(cache=CACHE[:, :9].clone()), r"cache is \[1, 9, 4\]"),
        (".safetensors", saved(cache=CACHE.repeat(2, 1, 1)), r"cache is \[2, 17, 4\]"),
        (".safetensors", saved(cache=CACHE.float()), "cache are torch.float32"),
        (".wav", b"RIFF", "not readable as audio"),
        (".mp3", b"", "not readable as audio"),
    ],
)
def test_what_is_no_voice_is_refused(suffix: str, data: bytes, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read_voice(suffix, data, SHAPE)


@pytest.mark.parametrize(
    ("pcm", "said"),
    [
        (noise(0.49), "lasts 0.5 to 30 s, not 0.49"),
        (noise(MAX_S + 0.01), "lasts 0.5 to 30 s, not 30.01"),
        (np.zeros(0, np.float32), "not 0.00"),
        (np.zeros(RATE, np.float32), "silent"),
        (np.full(RATE, np.nan, np.float32), "no numbers"),
        (np.full(RATE, np.inf, np.float32), "no numbers"),
    ],
)
def test_recordings_have_limits(tmp_path: Path, pcm: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recording(pcm, RATE)
    write_wav(tmp_path / "voice.wav", pcm, RATE, "float")
    if len(pcm):
        with pytest.raises(EngineError, match=said):
            read_voice(".wav", (tmp_path / "voice.wav").read_bytes(), SHAPE)
