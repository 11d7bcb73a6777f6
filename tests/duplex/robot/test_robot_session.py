import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.robot.replies import INTERNAL_ERROR, INVALID, RESET, failure_text, inference_reply
from duplex.robot.session import InvalidRequest, Reset, RobotSession
from engine.policy import BadObservation, Inference, PolicyError
from media.ndarray_msgpack import packb, unpackb


def ask(session, **fields):
    return session.read(packb(fields))


def test_the_first_observation_resets_and_the_next_does_not():
    session = RobotSession(1)
    first, second = ask(session, state=[1, 2]), ask(session, endpoint="infer", state=[3])
    assert (first.reset, second.reset) == (True, False)
    assert first.observation == {"state": [1, 2]}
    assert second.observation == {"state": [3]}
    assert first.session == second.session


def test_a_reset_makes_the_next_observation_a_first_one():
    session = RobotSession(1)
    before = ask(session).session
    assert isinstance(ask(session, endpoint="reset"), Reset)
    assert session.take_ended() == before
    after = ask(session)
    assert after.reset
    assert after.session != before


def test_another_session_id_is_another_session():
    session = RobotSession(1)
    seen = [ask(session, session_id=name) for name in ("a", "a", "b", "a")]
    assert [request.reset for request in seen] == [True, False, True, True]
    assert [request.observation["session_id"] for request in seen] == ["a", "a", "b", "a"]
    assert len({request.session for request in seen}) == 3


@pytest.mark.parametrize("absent", [{}, {"session_id": None}])
def test_without_an_id_it_is_the_default_one(absent):
    session = RobotSession(1)
    assert ask(session, session_id="default").reset
    assert not ask(session, **absent).reset
    assert ask(session, session_id="other").reset
    assert ask(session, **absent).reset


def test_sessions_of_two_robots_are_never_the_same():
    one, two = RobotSession(1), RobotSession(2)
    assert ask(one).session != ask(two).session


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packb([1]),
        packb(np.zeros(3)),
        packb({"endpoint": "metadata"}),
        packb({"endpoint": None}),
        packb({"endpoint": np.zeros(2)}),
        packb({"session_id": 3}),
        packb({"session_id": "x" * 257}),
        packb({"session_id": np.array(["a"])}),
    ],
)
def test_an_invalid_request_changes_nothing(payload):
    session = RobotSession(1)
    with pytest.raises(InvalidRequest):
        session.read(payload)
    first = ask(session)
    assert first.reset
    with pytest.raises(InvalidRequest):
        session.read(payload)
    assert not ask(session).reset
    assert session.take_ended() is None


@given(
    st.lists(
        st.one_of(
            st.just({"endpoint": "reset"}),
            st.fixed_dictionaries({}, optional={"session_id": st.sampled_from("ab")}),
            st.just({"endpoint": "no"}),
        ),
        max_size=12,
    )
)
def test_every_state_begins_with_a_reset_and_ends_once(messages):
    session, begun, ended = RobotSession(7), [], []
    for message in messages:
        try:
            request = ask(session, **message)
        except InvalidRequest:
            continue
        if (state := session.take_ended()) is not None:
            ended.append(state)
        if not isinstance(request, Reset):
            assert request.reset == (request.session not in begun)
            if request.reset:
                begun.append(request.session)
            assert request.session == begun[-1]
    session.end()
    if (state := session.take_ended()) is not None:
        ended.append(state)
    assert ended == begun


def test_stated_replies():
    assert unpackb(INVALID) == {"type": "error", "message": "Invalid request payload"}
    assert unpackb(RESET) == {"status": "reset successful"}


def test_a_reply_has_actions_and_timing():
    inference = Inference({"actions": np.zeros((4, 2)), "extra": 1}, 0.25)
    reply = unpackb(inference_reply(inference, infer_ms=300.0, prev_total_ms=None))
    assert reply["actions"].shape == (4, 2)
    assert reply["extra"] == 1
    assert reply["policy_timing"] == {"infer_ms": 250.0}
    assert reply["server_timing"] == {"infer_ms": 300.0}
    reply = unpackb(inference_reply(inference, infer_ms=300.0, prev_total_ms=12.0))
    assert reply["server_timing"] == {"infer_ms": 300.0, "prev_total_ms": 12.0}


def test_a_policy_may_measure_itself():
    inference = Inference({"actions": np.zeros((1, 1)), "policy_timing": {"infer_ms": 3.0}}, 0.25)
    reply = unpackb(inference_reply(inference, infer_ms=1.0, prev_total_ms=None))
    assert reply["policy_timing"] == {"infer_ms": 3.0}


def test_what_cannot_be_sent_is_the_policys_error():
    inference = Inference({"actions": np.zeros((1, 1)), "debug": object()}, 0.1)
    with pytest.raises(PolicyError, match="debug"):
        inference_reply(inference, infer_ms=1.0, prev_total_ms=None)


def test_only_what_a_policy_says_to_the_robot_is_told():
    assert failure_text(RuntimeError("/etc/secret")) == INTERNAL_ERROR
    assert failure_text(PolicyError("shape")) == INTERNAL_ERROR
    assert failure_text(BadObservation("no image")) == "no image"
