"""The default model in headless Chromium: it counts when asked, stops when told, and is read along.

Chromium's microphone says "count to ten", and "stop" while the answer is under way, over and over.
"""

import wave
from pathlib import Path

import numpy as np
import pytest

from media.files import read_audio
from recipes.bench.chromium import ALLOW_MICROPHONE, chromium
from recipes.nano import domain

RATE = 24_000
SAID = Path(__file__).parent / "count_to_ten_stop.ogg"
LINES = "[...document.querySelectorAll('#transcript .model p')].map((p) => p.textContent.trim())"


@pytest.fixture
def microphone(tmp_path):
    """The recording as the WAV file that Chromium wants, with time for the room to fall silent."""
    pcm = np.concatenate((read_audio(SAID, RATE), np.zeros(4 * RATE, np.float32)))
    path = tmp_path / "microphone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((pcm * 32767).astype("<i2").tobytes())
    return path


async def test_it_counts_and_stops(start_process, microphone, tmp_path, browser_is_here, all_free):
    with start_process("--max-sessions", "1") as server:
        address = server.address.replace("127.0.0.1", "localhost")
        profile, flags = tmp_path / "profile", (ALLOW_MICROPHONE,)
        async with chromium(profile, microphone=microphone, flags=flags) as page:
            await page.goto(address)
            await page.until("!document.getElementById('talk').disabled")
            assert await page.text("h1") == "Talk with nano"
            assert "Count to ten." in await page.text("#examples")
            await page.click("#talk")
            first = await page.until(f"{LINES}.length > 1 && {LINES}[0]", 60)
            await page.click("#talk")
            assert page.errors == []
        counted = first.split()
        numbers = [domain.number(n) for n in range(1, 11)]
        assert 2 <= len(counted) < len(numbers)
        assert counted == numbers[: len(counted)]
        await all_free(server.address)
