"""What peers that run in a browser share: the browser, and the voice in its microphone."""

import asyncio
import os
import wave

import aiohttp
import numpy as np
import pytest

from media.clips import read_clip
from recipes.bench.chromium import executable
from tests.media.rtc_client import RATE, speech


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a peer that is not here is a failure; only the recording may be elsewhere."""
    report = yield
    if os.environ.get("CI") and report.skipped and "recording" not in item.fixturenames:
        report.outcome = "failed"
        report.longrepr = f"CI skips no peer: {call.excinfo.value}"
    return report


@pytest.fixture
def browser_is_here():
    if executable() is None:
        pytest.skip("there is no chromium: apt-get install chromium")


def without_bass(pcm):
    """Without what is below 300 Hz, whose phase a browser's filters turn as they like."""
    spectrum = np.fft.rfft(pcm)
    spectrum[np.fft.rfftfreq(len(pcm), 1 / RATE) < 300] = 0
    return np.fft.irfft(spectrum, len(pcm)).astype(np.float32)


@pytest.fixture(scope="session")
def voice(tmp_path_factory, pytestconfig):
    """A WAV file that speaks for four seconds and pauses, and its samples at 24 kHz: of the
    recording, or something like it.
    """
    recording = pytestconfig.rootpath.parent / "shared/audio/input_assistant.wav"
    spoken = without_bass(speech(4.0))
    if recording.exists():
        whole = read_clip(recording.read_bytes(), RATE, max_s=60)
        spoken = whole[np.flatnonzero(np.abs(whole) > 0.05)[0] :][: 4 * RATE]
    pcm = np.concatenate((spoken, np.zeros(2 * RATE, np.float32)))
    path = tmp_path_factory.mktemp("voice") / "voice.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((pcm * 32767).astype("<i2").tobytes())
    return path, pcm


@pytest.fixture
def all_free():
    """`await all_free(address)`: every slot of a server is free again; fails if that takes long."""

    async def wait(address):
        async with aiohttp.ClientSession() as http, asyncio.timeout(10):
            while True:
                async with http.get(address + "/ready") as answer:
                    ready = await answer.json()
                if ready["free"] == ready["slots"]:
                    return
                await asyncio.sleep(0.05)

    return wait
