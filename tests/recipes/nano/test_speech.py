import json
import shutil
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from recipes.nano.clips import recorded
from recipes.nano.speech import PICO_VOICES, SAMPLE_RATE, GnuSpeech, pico, revoice
from recipes.nano.synthesise import SHARD, Recorder, app, record_brief

HUM_S = 1.5
PACKAGES = Path(__file__).parents[2] / "peers"  # where npm installs what the tests use


def hum(hz: float) -> np.ndarray:
    """A vowel-like sound: harmonics of `hz` that fall off, with a formant at 700 Hz."""
    t = np.arange(int(HUM_S * SAMPLE_RATE)) / SAMPLE_RATE
    out = np.zeros_like(t)
    for k in range(1, int(4000 / hz)):
        out += np.sin(2 * np.pi * k * hz * t) / (1 + ((k * hz - 700) / 200) ** 2)
    return (0.5 * out / np.abs(out).max()).astype(np.float32)


def pitch(pcm: np.ndarray) -> float:
    """Fundamental frequency in Hz of a steady sound, from its autocorrelation."""
    middle = pcm[len(pcm) // 3 : 2 * len(pcm) // 3]
    lags = np.fft.irfft(np.abs(np.fft.rfft(middle, 2 * len(middle))) ** 2)
    shortest = SAMPLE_RATE // 500
    return float(SAMPLE_RATE / (shortest + np.argmax(lags[shortest : SAMPLE_RATE // 60])))


def test_pico_says_the_same_again_from_the_same_seed_only() -> None:
    pytest.importorskip("ttspico")
    (first, voice), (again, _), (other, _) = (pico("count to ten.", Random(s)) for s in (1, 1, 2))
    assert voice in PICO_VOICES
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert 0.5 * SAMPLE_RATE < len(first) < 3 * SAMPLE_RATE
    assert 0.02 < np.abs(first).max() < 1


def test_pico_does_not_clip() -> None:
    pytest.importorskip("ttspico")
    for seed in range(30):
        pcm, voice = pico("what is seven plus eighteen?", Random(seed))
        assert np.abs(pcm).max() < 0.99, (seed, voice)


def test_gnuspeech_speaks_with_throats_of_many_sizes() -> None:
    if not (PACKAGES / "node_modules/@echogarden/gnuspeech-wasm").exists():
        pytest.skip("GnuSpeech's npm package is not installed")
    voices, lengths = set(), set()
    with closing(GnuSpeech(PACKAGES)) as speak:
        for seed in range(4):
            pcm, voice = speak("count to ten.", Random(seed))
            voices.add(voice)
            lengths.add(len(pcm))
            assert 0.5 * SAMPLE_RATE < len(pcm) < 3 * SAMPLE_RATE, voice
            assert 0.02 < np.abs(pcm).max() < 1, voice
    assert len(voices) == len(lengths) == 4


@pytest.mark.skipif(shutil.which("node") is None, reason="GnuSpeech runs in Node.js")
def test_gnuspeech_without_its_package_says_so(tmp_path) -> None:
    with closing(GnuSpeech(tmp_path)) as speak, pytest.raises(RuntimeError, match="ended"):
        speak("count to ten.", Random(0))


@pytest.mark.parametrize("engine", ["gnuspeech", "kokoro", "sam"])
def test_engines_that_lack_something_or_are_unknown_are_refused(tmp_path, engine: str) -> None:
    result = CliRunner().invoke(app, ["users", engine, str(tmp_path), "--count", "1"])
    assert result.exit_code == 2
    assert engine in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("engine", "program"), [("flite", "flite"), ("espeak", "espeak-ng"), ("gnuspeech", "node")]
)
def test_an_engine_whose_program_is_not_installed_names_it(
    tmp_path, monkeypatch, engine: str, program: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, ["users", engine, str(tmp_path / "raw"), "--count", "1"])
    assert result.exit_code == 2
    assert f"needs {program}" in " ".join(result.output.split())


def test_parts_that_are_not_recorded_are_named(tmp_path) -> None:
    (tmp_path / "flite-0000.npz").touch()
    result = CliRunner().invoke(app, ["revoice", str(tmp_path), "flite", "pico", "kokoro"])
    assert result.exit_code == 2
    assert "no recordings of pico, kokoro" in " ".join(result.output.replace("│", " ").split())


def test_revoice_changes_the_pitch_by_the_factor_it_names_and_the_pace_apart_from_it() -> None:
    pytest.importorskip("pyworld")
    stretches = set()
    for seed in range(6):
        pcm, name = revoice(hum(150), Random(seed))
        factor = float(name[1:].split("m")[0])
        assert pitch(pcm) == pytest.approx(150 * factor, rel=0.03), name
        stretches.add(round(len(pcm) / SAMPLE_RATE / HUM_S, 1))
        assert 0.63 < len(pcm) / SAMPLE_RATE / HUM_S < 1.5
    assert len(stretches) > 2


def test_revoice_changes_the_rhythm() -> None:
    pytest.importorskip("pyworld")
    steady = hum(150)
    gate = np.arange(len(steady)) // (SAMPLE_RATE // 10) % 2  # 5 bursts a second
    uneven, ends = 0, []
    for seed in range(8):
        pcm, _ = revoice(steady * np.where(gate, 1, 0.01).astype(np.float32), Random(seed))
        level = np.sqrt((pcm[: len(pcm) // 240 * 240].reshape(-1, 240) ** 2).mean(1))
        loud = level > level.max() / 4
        gaps = np.diff(np.flatnonzero(loud[1:] & ~loud[:-1]))
        uneven += gaps.max() > 1.2 * gaps.min()
        ends.append(gaps[-1] / np.median(gaps))
    assert uneven >= 6
    assert np.median(ends) < 1


def test_revoice_changes_how_far_and_how_fast_the_spectrum_moves() -> None:
    pytest.importorskip("pyworld")
    steady = hum(150)
    gate = np.arange(len(steady)) // (SAMPLE_RATE // 10) % 2  # 5 bursts a second
    depths = []
    for seed in range(8):
        pcm, _ = revoice(steady * np.where(gate, 1, 0.1).astype(np.float32), Random(seed))
        level = np.sqrt((pcm[: len(pcm) // 240 * 240].reshape(-1, 240) ** 2).mean(1))[10:-10]
        depths.append(float(np.log10(np.percentile(level, 90) / np.percentile(level, 10))))
    assert all(0.4 < depth < 1.4 for depth in depths), depths  # 1 is what went in
    assert max(depths) - min(depths) > 0.2, depths


def test_revoiced_recordings_keep_what_is_said(tmp_path) -> None:
    pytest.importorskip("pyworld")
    out = Recorder()
    for i in range(3):
        out.add(hum(120 + i), engine="flite", voice="awb", intent="hello", text="hello", a=i, b=-1)
    out.save(tmp_path / "flite-0000.npz")
    args = ["revoice", str(tmp_path), "flite", "--count", str(SHARD), "--workers", "1"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    clips = list(recorded(tmp_path / "revoiced-0000.npz"))
    assert [m["a"] for _, m in clips] == [0, 1, 2]
    for pcm, meta in clips:
        assert len(pcm) == meta["n"]
        assert (meta["engine"], meta["text"]) == ("flite", "hello")
        assert meta["voice"].startswith("awb~p")
    assert json.loads(str(np.load(tmp_path / "flite-0000.npz")["meta"]))[0]["voice"] == "awb"


def test_brief_recordings_are_short_clips_said_quickly(tmp_path) -> None:
    pytest.importorskip("pyworld")
    out = Recorder()
    for text, seconds in (("hello", 0.5), ("what is your name", 1.5)):
        samples = int(seconds * SAMPLE_RATE)
        pcm = np.tile(hum(120), 2)[:samples]
        out.add(pcm, engine="flite", voice="awb", intent="hello", text=text, a=-1, b=-1)
    out.save(tmp_path / "flite-0000.npz")
    args = ["revoice", str(tmp_path), "flite", "--count", str(SHARD), "--workers", "1", "--brief"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    clips = [meta for _, meta in recorded(tmp_path / "brief-0000.npz")]
    assert [m["text"] for m in clips] == ["hello"] * SHARD
    lengths = [m["n"] / SAMPLE_RATE for m in clips]
    assert min(lengths) > 0.15
    assert max(lengths) < 0.5
    assert max(lengths) > 1.3 * min(lengths)


def test_brief_recordings_need_a_short_clip(tmp_path) -> None:
    pytest.importorskip("pyworld")
    out = Recorder()
    long = np.tile(hum(120), 3)[: 2 * SAMPLE_RATE]
    out.add(long, engine="flite", voice="awb", intent="hello", text="hello", a=-1, b=-1)
    out.save(tmp_path / "flite-0000.npz")
    with pytest.raises(ValueError, match="no clip is shorter than"):
        record_brief(tmp_path / "brief-0000.npz", [tmp_path / "flite-0000.npz"], Random(1))


@pytest.mark.parametrize("part", ["agent", "kokoro"])
def test_what_cannot_be_revoiced_is_refused(tmp_path, part: str) -> None:
    result = CliRunner().invoke(app, ["revoice", str(tmp_path), part])
    assert result.exit_code == 2, result.output
    assert part in result.output
