import sys
import types

import numpy as np
import pytest

from engine.policy import Inference, PolicyError, PolicyRunner, Request, load_policy


class Plain:
    def __init__(self, result=None, **options):
        self.metadata = {"options": options}
        self.result = np.zeros((2, 3)) if result is None else result
        self.calls = []
        self.closed = False

    def infer(self, obs, reset=False):
        self.calls.append((obs, reset))
        if obs.get("bad"):
            raise ValueError("bad")
        return self.result

    def close(self):
        self.closed = True


class Batched(Plain):
    max_batch = 8

    def infer_batch(self, observations, resets):
        self.calls.append((observations, resets))
        if any(obs.get("bad") for obs in observations):
            raise ValueError("bad")
        return [np.full((1, 2), obs["x"]) for obs in observations]


class Stateful(Plain):
    ended = ()

    def infer(self, obs, reset=False, *, session):
        self.calls.append((session, reset))
        return self.result

    def end_session(self, session):
        self.ended += (session,)


def request(reset=False, session="1.1", **observation):
    return Request(observation, reset, session)


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("some_policies")
    monkeypatch.setitem(sys.modules, "some_policies", made)
    return made


def test_a_policy_is_found_and_made_with_its_options(module):
    module.make = Plain
    runner = load_policy("some_policies:make", {"horizon": 3})
    assert runner.metadata == {"options": {"horizon": 3}}
    assert runner.max_batch == 1


def broken(**_):
    raise OSError("no weights")


@pytest.mark.parametrize(
    ("name", "factory", "options", "said"),
    [
        ("no_such_module:make", None, {}, "no module no_such_module"),
        ("some_policies:other", None, {}, "has no other"),
        ("some_policies:make", broken, {}, "OSError: no weights"),
        ("some_policies:make", lambda: None, {"x": 1}, "unexpected keyword"),
        ("some_policies:make", object, {}, "no infer"),
        (
            "some_policies:make",
            lambda: types.SimpleNamespace(infer=print, close=print),
            {},
            "no metadata",
        ),
        ("some_policies:make", lambda: types.SimpleNamespace(infer=print), {}, "no close"),
    ],
)
def test_what_is_no_policy_is_said(module, name, factory, options, said):
    module.make = factory
    with pytest.raises(PolicyError, match=said):
        load_policy(name, options)


def test_a_batch_size_that_makes_no_sense_is_said(module):
    module.make = type("Wrong", (Batched,), {"max_batch": 0})
    with pytest.raises(PolicyError, match="max_batch"):
        load_policy("some_policies:make", {})


@pytest.mark.parametrize(
    ("result", "shape"),
    [
        (np.zeros((4, 2)), (4, 2)),
        ({"actions": np.zeros((4, 2), np.float32)}, (4, 2)),
        ([[1, 2], [3, 4]], (2, 2)),
        (np.zeros(7), (1, 7)),
        (np.zeros((0, 2)), (0, 2)),
    ],
)
def test_actions_come_as_an_array_or_in_a_map(result, shape):
    (inference,) = PolicyRunner(Plain(result)).run([request()])
    assert inference.fields["actions"].shape == shape
    assert inference.seconds >= 0


@pytest.mark.parametrize(
    "result",
    [
        {"states": 1},
        np.zeros((1, 2, 3)),
        3.0,
        np.array([["a"]]),
        [[1], [2, 3]],
        np.zeros(2, complex),
    ],
)
def test_what_is_no_action_is_that_robots_error(result):
    (outcome,) = PolicyRunner(Plain(result)).run([request()])
    assert isinstance(outcome, PolicyError | ValueError)


def test_one_robots_exception_is_its_own():
    policy = Plain()
    outcomes = PolicyRunner(policy).run([request(x=1, reset=True), request(bad=True), request(x=2)])
    assert [type(outcome) for outcome in outcomes] == [Inference, ValueError, Inference]
    assert policy.calls[0] == ({"x": 1}, True)


def test_a_batch_goes_through_the_policy_at_once():
    policy = Batched()
    runner = PolicyRunner(policy)
    assert runner.max_batch == 8
    outcomes = runner.run([request(x=1, reset=True), request(x=2)])
    assert policy.calls == [([{"x": 1}, {"x": 2}], [True, False])]
    assert [outcome.fields["actions"][0, 0] for outcome in outcomes] == [1, 2]


def test_in_a_batch_too_an_exception_is_the_culprits_alone():
    outcomes = PolicyRunner(Batched()).run([request(x=1), request(bad=True), request(x=2)])
    assert [type(outcome) for outcome in outcomes] == [Inference, ValueError, Inference]


def test_a_batch_of_nothing_calls_nothing():
    policy = Batched()
    assert PolicyRunner(policy).run([]) == []
    assert policy.calls == []


def test_too_few_results_are_an_error():
    policy = Batched()
    policy.infer_batch = lambda observations, resets: []
    outcomes = PolicyRunner(policy).run([request(x=1), request(x=2)])
    assert [type(outcome) for outcome in outcomes] == [PolicyError, PolicyError]


def test_only_a_policy_with_state_is_told_whose_it_is():
    policy = Stateful()
    runner = PolicyRunner(policy)
    runner.run([request(session="1.1", reset=True), request(session="2.1")])
    runner.end_session("1.1")
    assert policy.calls == [("1.1", True), ("2.1", False)]
    assert policy.ended == ("1.1",)
    PolicyRunner(Plain()).end_session("1.1")


def test_closing_closes_the_policy():
    policy = Plain()
    PolicyRunner(policy).close()
    assert policy.closed
