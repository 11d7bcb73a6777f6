"""Voices by name."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from engine.api import BadParams, EngineError
from engine.mimi.codec import Mimi
from engine.rows import Rows
from engine.tiny import MIMI
from engine.voice_files import Recording, VoiceShape
from engine.voices import VoiceRegistry, encode_recording
from media.files import write_wav

RATE = 24_000
SHAPE = VoiceShape(sample_rate=RATE, frame_size=1920, books=8, card=256, dim=64, channels=17)
CPU = torch.device("cpu")


def codes(value: int) -> Tensor:
    return torch.full((3, 8), value)


def put(path: Path, name: str, value: int = 0) -> None:
    path.mkdir(exist_ok=True)
    save_file({"codes": codes(value)}, path / name)


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, int(RATE * seconds)).astype(np.float32)


def test_a_directory_s_files_are_its_voices(tmp_path: Path) -> None:
    put(tmp_path, "NATM1.safetensors", 1)
    torch.save({"codes": codes(2)}, tmp_path / "NATF2.pt")
    write_wav(tmp_path / "my-own_voice.WAV", noise(1), RATE, "float")
    (tmp_path / "README.md").write_text("voices")
    (tmp_path / ".hidden.pt").write_bytes(b"nothing")
    (tmp_path / "more.pt").mkdir()
    voices = VoiceRegistry([tmp_path], SHAPE)
    assert voices.names == ("NATF2", "NATM1", "my-own_voice")
    assert isinstance(voices.get("my-own_voice"), Recording)
    two = voices.get("NATF2")
    assert isinstance(two, Tensor)
    assert torch.equal(two, codes(2))


def test_an_archive_is_a_source_like_a_directory(tmp_path: Path) -> None:
    put(tmp_path / "voices", "NATM1.safetensors", 1)
    write_wav(tmp_path / "voices/own.wav", noise(1), RATE, "float")
    with tarfile.open(tmp_path / "voices.tgz", "w:gz") as tar:
        tar.add(tmp_path / "voices", "voices")
    shutil.rmtree(tmp_path / "voices")
    assert VoiceRegistry([tmp_path / "voices.tgz"], SHAPE).names == ("NATM1", "own")
    assert [file.name for file in tmp_path.iterdir()] == ["voices.tgz"]


def test_of_several_forms_the_one_that_needs_no_encoding_is_taken(tmp_path: Path) -> None:
    write_wav(tmp_path / "ada.wav", noise(1), RATE, "float")
    torch.save({"codes": codes(1)}, tmp_path / "ada.pt")
    assert value(VoiceRegistry([tmp_path], SHAPE), "ada") == 1
    put(tmp_path, "ada.safetensors", 2)
    assert value(VoiceRegistry([tmp_path], SHAPE), "ada") == 2


def value(voices: VoiceRegistry, name: str) -> int:
    voice = voices.get(name)
    assert isinstance(voice, Tensor)
    return int(voice[0, 0])


def test_a_later_source_wins(tmp_path: Path) -> None:
    put(tmp_path / "a", "ada.safetensors", 1)
    put(tmp_path / "a", "bob.safetensors", 1)
    put(tmp_path / "b", "ada.safetensors", 2)
    voices = VoiceRegistry([tmp_path / "a", tmp_path / "b"], SHAPE)
    assert voices.names == ("ada", "bob")
    assert (value(voices, "ada"), value(voices, "bob")) == (2, 1)


@pytest.mark.parametrize("name", ["a b.pt", "é.wav", "a.b.safetensors", "a'.pt"])
def test_a_name_is_letters_digits_and_marks(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(EngineError, match="a voice's name has only letters, digits, _ and -"):
        VoiceRegistry([tmp_path], SHAPE)


def test_a_voice_that_cant_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "ada.pt").write_bytes(b"nothing")
    with pytest.raises(EngineError, match=rf"{tmp_path.name}: ada\.pt: not a readable voice"):
        VoiceRegistry([tmp_path], SHAPE)
    with pytest.raises(EngineError, match="nowhere: no such directory of voices"):
        VoiceRegistry([tmp_path / "nowhere"], SHAPE)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> VoiceRegistry:
    path = tmp_path_factory.mktemp("voices")
    for number in range(10):
        put(path, f"V{number}.safetensors")
    return VoiceRegistry([path], SHAPE)


def test_a_voice_is_found_by_its_name(voices: VoiceRegistry) -> None:
    assert voices.find("V3") == "V3"
    assert voices.find("V3.pt") == "V3"


@pytest.mark.parametrize(
    "name",
    ["", "V", "v3", ".pt", "V3.pt.pt", "V3.safetensors", "V3 ", "V3\0", "V3/", "./V3", "/V3", ".."]
    + ["../voices/V3", "../../../etc/passwd", "/etc/passwd", "~/V3.pt", "https://there/V3.pt"],
)
def test_an_unknown_name_says_which_there_are(voices: VoiceRegistry, name: str) -> None:
    with pytest.raises(BadParams, match=r"unknown voice .*V0, V1, .*V7 and 2 more") as caught:
        voices.find(name)
    assert caught.value.field == "voice"


@given(name=st.text(alphabet="./\\V3pt~\0%", max_size=20))
def test_no_name_leads_out_of_the_registry(voices: VoiceRegistry, name: str) -> None:
    if name in ("V3", "V3.pt"):
        assert voices.find(name) == "V3"
    else:
        with pytest.raises(BadParams):
            voices.find(name)


def test_without_voices_it_says_so() -> None:
    with pytest.raises(BadParams, match="there are none"):
        VoiceRegistry([], SHAPE).find("ada")


@pytest.fixture(scope="module")
def mimi(tiny: Path) -> Mimi:
    return Mimi.load(tiny / "tokenizer-e351c8d8-checkpoint125.safetensors", MIMI)


@torch.inference_mode()
def test_a_recording_is_encoded_frame_by_frame(mimi: Mimi) -> None:
    pcm = noise(0.7)
    work = encode_recording(mimi, Recording(pcm), CPU)
    pieces, found = 0, None
    while found is None:
        try:
            next(work)
            pieces += 1
        except StopIteration as end:
            found = end.value
    state, rows = mimi.state(1), Rows([0])
    padded = torch.from_numpy(np.pad(pcm, (0, 9 * 1920 - len(pcm))))
    expected = [mimi.encode(state, rows, frame) for frame in padded.view(9, 1, 1920)]
    assert pieces == 9
    assert torch.equal(found, torch.cat(expected))


def test_a_recording_s_codes_take_its_place(tmp_path: Path) -> None:
    write_wav(tmp_path / "ada.wav", noise(1), RATE, "float")
    voices = VoiceRegistry([tmp_path], SHAPE)
    voices.keep("ada", codes(5))
    assert value(voices, "ada") == 5
