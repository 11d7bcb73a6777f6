import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from media.files import read_audio
from media.vad import Vad

RECORDING = Path(__file__).parents[3] / "shared/audio/input_assistant.wav"


class Listener:
    def __init__(self, vad, rate):
        self.heard = []
        self.more = asyncio.Event()
        self.stream = vad.stream(rate, self.hear)

    def hear(self, probabilities):
        self.heard += probabilities
        self.more.set()

    async def until(self, count):
        while len(self.heard) < count:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 20)
        return self.heard


@pytest.fixture
def vad():
    made = Vad()
    yield made
    made.close()


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


async def test_noise_and_silence_are_no_speech(vad):
    for sound in (np.zeros(24_000, np.float32), noise(24_000)):
        listener = Listener(vad, 24_000)
        listener.stream.push(sound)
        assert max(await listener.until(31)) < 0.5


@pytest.mark.skipif(not RECORDING.exists(), reason="needs the recording")
async def test_speech_is_speech(vad):
    listener = Listener(vad, 24_000)
    listener.stream.push(read_audio(RECORDING, 24_000)[72_000:144_000])
    assert max(await listener.until(92)) > 0.9


class Broken:
    """A model that fails, and works again after a while."""

    calls = 0

    def run(self, _, inputs):
        self.calls += 1
        if self.calls <= 3:
            raise RuntimeError("out of luck")
        return np.ones((len(inputs["input"]), 1), np.float32), inputs["state"]


async def test_a_model_that_fails_hears_silence_and_is_told_of_once(vad, monkeypatch, caplog):
    monkeypatch.setattr("media.vad._load", lambda _: Broken())
    listener = Listener(vad, 16_000)
    listener.stream.push(noise(512 * 6))
    assert (await listener.until(5))[:5] == [0, 0, 0, 1, 1]
    assert len(caplog.records) == 1


async def test_a_caller_hears_the_same_in_company_and_in_any_chunks(vad):
    sounds = [noise(16_000, seed) for seed in range(4)]
    alone = []
    for sound in sounds:
        listener = Listener(vad, 16_000)
        listener.stream.push(sound)
        alone.append(list(await listener.until(31)))
    together = [Listener(vad, 16_000) for _ in sounds]
    for start in range(0, 16_000, 700):
        for listener, sound in zip(together, sounds, strict=True):
            listener.stream.push(sound[start : start + 700])
    for listener, expected in zip(together, alone, strict=True):
        assert await listener.until(31) == expected


async def test_a_closed_stream_is_silent(vad):
    closed, other = Listener(vad, 16_000), Listener(vad, 16_000)
    closed.stream.close()
    closed.stream.push(noise(16_000))
    other.stream.push(noise(16_000))
    await other.until(31)
    assert closed.heard == []


async def test_a_flood_loses_the_oldest_and_says_so(vad):
    listener = Listener(vad, 16_000)
    listener.stream.push(noise(16_000 * 20))
    heard = 16_000 * 20 // 512 - listener.stream.dropped
    assert listener.stream.dropped > 0
    await listener.until(heard)


def test_torch_stays_out():
    code = "import sys, media.vad; media.vad.Vad(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
