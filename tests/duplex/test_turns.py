from hypothesis import given
from hypothesis import strategies as st

from duplex.turns import (
    SpeechStarted,
    SpeechStopped,
    SpeechTimeout,
    TurnDetection,
    UserTurns,
)

WINDOW = 32.0


def hear(turns, *probabilities):
    return [turn for p in probabilities if (turn := turns.hear(p, WINDOW)) is not None]


def test_a_turn_has_padding_before_and_silence_after():
    turns = UserTurns(TurnDetection(prefix_padding_ms=64, silence_duration_ms=96))
    assert hear(turns, 0, 0, 0, 0) == []
    assert hear(turns, 0.9) == [SpeechStarted(64.0)]
    assert turns.speech_ms == 32.0
    assert hear(turns, 0.9, 0.1, 0.9) == []
    assert turns.speech_ms == 128.0
    assert hear(turns, 0.1, 0.1) == []
    assert turns.speech_ms == 128.0
    assert hear(turns, 0.1) == [SpeechStopped(352.0)]
    assert turns.speech_ms == 0.0


def test_padding_does_not_reach_into_the_turn_before():
    turns = UserTurns(TurnDetection(prefix_padding_ms=1_000, silence_duration_ms=32))
    assert hear(turns, 0.9, 0.0) == [SpeechStarted(0.0), SpeechStopped(64.0)]
    assert hear(turns, 0.0, 0.9) == [SpeechStarted(64.0)]


def test_a_level_just_below_the_threshold_keeps_a_turn_but_starts_none():
    turns = UserTurns(TurnDetection(threshold=0.5, silence_duration_ms=32))
    assert hear(turns, 0.4, 0.4) == []
    assert [type(turn) for turn in hear(turns, 0.6, 0.4, 0.4, 0.3)] == [
        SpeechStarted,
        SpeechStopped,
    ]


def test_silence_times_out_again_and_again_and_from_the_agents_end():
    turns = UserTurns(TurnDetection(idle_timeout_ms=96))
    assert hear(turns, 0, 0, 0, 0, 0, 0) == [SpeechTimeout(0.0, 96.0), SpeechTimeout(96.0, 192.0)]
    hear(turns, 0, 0)
    turns.agent_spoke()
    assert hear(turns, 0, 0) == []
    assert hear(turns, 0) == [SpeechTimeout(256.0, 352.0)]


@given(st.lists(st.floats(0, 1), max_size=200), st.integers(0, 500), st.integers(0, 500))
def test_turns_alternate_and_never_overlap(probabilities, padding, silence):
    turns = UserTurns(TurnDetection(prefix_padding_ms=padding, silence_duration_ms=silence))
    found = hear(turns, *probabilities)
    assert [type(turn) for turn in found] == [SpeechStarted, SpeechStopped] * (len(found) // 2) + [
        SpeechStarted
    ] * (len(found) % 2)
    edges = [turn.at_ms for turn in found]
    assert edges == sorted(edges)
    assert all(0 <= edge <= len(probabilities) * WINDOW for edge in edges)
