import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.utterances import Speech, Utterances

SILENCE = np.zeros(1_920, np.float32)
HISS = np.full(1_920, 10 ** (-60 / 20), np.float32)
VOICE = np.full(1_920, 0.1, np.float32)


def hear(utterances, *frames):
    return [utterances.hear(pcm, text) for pcm, text in frames]


def test_an_utterance():
    utterances = Utterances(silence_frames=2)
    assert hear(utterances, (SILENCE, ""), (HISS, ""), (VOICE, ""), (SILENCE, ""), (VOICE, "")) == [
        Speech.SILENT,
        Speech.SILENT,
        Speech.BEGINS,
        Speech.GOES_ON,
        Speech.GOES_ON,
    ]
    assert utterances.speaking
    assert hear(utterances, (HISS, ""), (HISS, ""), (HISS, "")) == [
        Speech.GOES_ON,
        Speech.ENDED,
        Speech.SILENT,
    ]
    assert not utterances.speaking


def test_text_counts_as_speech():
    utterances = Utterances(silence_frames=1)
    assert hear(utterances, (SILENCE, "hi"), (SILENCE, "")) == [Speech.BEGINS, Speech.ENDED]


@given(st.lists(st.booleans(), max_size=100), st.integers(1, 10))
def test_what_begins_ends_once(voiced, silence_frames):
    utterances = Utterances(silence_frames)
    found = hear(utterances, *((VOICE if v else SILENCE, "") for v in voiced))
    edges = [speech for speech in found if speech in (Speech.BEGINS, Speech.ENDED)]
    assert edges[::2] == [Speech.BEGINS] * len(edges[::2])
    assert edges[1::2] == [Speech.ENDED] * len(edges[1::2])
    inside = False
    for speech in found:
        assert (speech is Speech.GOES_ON) <= inside
        inside = speech in (Speech.BEGINS, Speech.GOES_ON)


def test_silence_frames_is_positive():
    with pytest.raises(ValueError, match="silence_frames"):
        Utterances(0)
