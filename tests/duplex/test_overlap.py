import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.overlap import Decision, Overlap


def decisions(overlap, *stretches):
    return [
        decision
        for user, agent in stretches
        if (decision := overlap.hear(user_speaks=user, agent_speaks=agent, ms=80)) is not None
    ]


BOTH, AGENT, USER, NOBODY = (True, True), (False, True), (True, False), (False, False)


def overlap(policy="barge_in_on_speech", short_ack_ms=160, barge_in_ms=320):
    return Overlap(policy, short_ack_ms=short_ack_ms, barge_in_ms=barge_in_ms)


@pytest.mark.parametrize(
    ("stretches", "expected"),
    [
        ([AGENT] * 9 + [USER] * 9, []),
        ([BOTH] * 3, []),
        ([BOTH] * 2 + [AGENT], [Decision("listen", "short_acknowledgement")]),
        ([BOTH] * 3 + [AGENT], [Decision("listen", "brief_speech")]),
        ([BOTH] * 4, [Decision("barge_in", "user_speech")]),
        ([BOTH] * 9 + [AGENT] * 9, [Decision("barge_in", "user_speech")]),
        ([BOTH] * 2 + [USER] * 5 + [NOBODY], [Decision("listen", "short_acknowledgement")]),
        (
            [BOTH, AGENT] * 2 + [BOTH] * 4,
            [Decision("listen", "short_acknowledgement")] * 2
            + [Decision("barge_in", "user_speech")],
        ),
    ],
)
def test_decisions(stretches, expected):
    assert decisions(overlap(), *stretches) == expected


def test_a_listening_policy_never_interrupts():
    assert decisions(overlap("listen_only"), *[BOTH] * 9) == [Decision("listen", "policy")]


def test_an_acknowledgement_never_interrupts_whatever_the_barge_in_time():
    assert decisions(overlap(short_ack_ms=240, barge_in_ms=80), BOTH, BOTH, AGENT) == [
        Decision("listen", "short_acknowledgement")
    ]


@given(st.lists(st.sampled_from([BOTH, AGENT, USER, NOBODY]), max_size=60))
def test_one_decision_a_stretch_at_most(stretches):
    speech = "".join("u" if user else " " for user, _ in stretches).split()
    assert len(decisions(overlap(), *stretches)) <= len(speech)
