"""The benchmark of interruptions finds them, with speech that is made up."""

from clients.serving import serving
from recipes.bench.barge_in import measure, speech


async def test_every_stretch_of_speech_interrupts():
    with serving("echo", 2, DUPLEX_DELAY_FRAMES="12") as url:
        found = await measure(url, speech(None, 4.0), sessions=2)
    assert len(found.told_ms) == 2
    assert min(found.told_ms) > 0, "decided by audio that had been sent"
    assert found.stale == 0
    assert len(found.frame_ms) > 40
