import logging

import pytest

from engine.api import BadParams, EngineError
from engine.stages.messages import (
    WINDOW,
    AbortJob,
    Grant,
    JobEnded,
    JobFailed,
    Produced,
    StartJob,
)
from engine.stages.scheduler import StageScheduler
from engine.stages.values import (
    ChatMessage,
    ChatRequest,
    StageEnd,
    StageInput,
    StageStats,
    TextPiece,
)

DONE = StageEnd(reason="stop", output_tokens=0)


class Script:
    """A stage that does what a message says: so many pieces, or an error."""

    def __init__(self):
        self.closed = []

    def run(self, given):
        text = given.request.messages[0].text
        try:
            match text.split():
                case ["raise", "bad"]:
                    raise BadParams("seed", "no seed here")
                case ["raise", "words"]:
                    raise EngineError("in our words")
                case ["raise", _]:
                    raise ZeroDivisionError("by what")
                case ["think", times]:
                    for _ in range(int(times)):
                        yield None
                case [count]:
                    for index in range(int(count)):
                        yield TextPiece(f"{index} ")
        except GeneratorExit:
            self.closed.append(text)
            if text == "9":
                raise RuntimeError("won't go") from None
            raise
        return DONE


def given(text):
    return StageInput(ChatRequest(messages=(ChatMessage(role="user", content=text),)))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stage():
    return Script()


@pytest.fixture
def scheduler(stage, clock):
    return StageScheduler({"a": (stage, 2), "b": (stage, 1)}, clock=clock)


def start(scheduler, job, text, name="a"):
    scheduler.obey(StartJob(job, name, given(text)))


def run(scheduler, limit=1000):
    events = []
    while scheduler.busy:
        assert (limit := limit - 1)
        if event := scheduler.advance():
            events.append(event)
    return events


def gauges(scheduler):
    return {(s.stage, s.waiting, s.running + s.unread) for s in scheduler.stats()}


def test_nothing_to_do(scheduler):
    assert not scheduler.busy
    assert scheduler.advance() is None
    assert scheduler.stats() == (
        StageStats(stage="a", waiting=0, running=0),
        StageStats(stage="b", waiting=0, running=0),
    )


def test_jobs_take_turns_and_each_ends_once(scheduler):
    start(scheduler, 1, "2")
    start(scheduler, 2, "1")
    events = run(scheduler)
    assert [(type(e), e.job) for e in events] == [
        (Produced, 1),
        (Produced, 2),
        (Produced, 1),
        (JobEnded, 2),
        (JobEnded, 1),
    ]
    assert gauges(scheduler) == {("a", 0, 0), ("b", 0, 0)}


def test_more_than_may_run_wait_in_order(scheduler):
    for job in range(4):
        start(scheduler, job, "1")
    assert ("a", 2, 2) in gauges(scheduler)
    ends = [e.job for e in run(scheduler) if isinstance(e, JobEnded)]
    assert ends == [0, 1, 2, 3]


def test_stages_do_not_wait_for_each_other(scheduler):
    for job in range(3):
        start(scheduler, job, "1")
    start(scheduler, 9, "1", "b")
    assert gauges(scheduler) == {("a", 1, 2), ("b", 0, 1)}


def test_thought_without_output_gives_no_event(scheduler):
    start(scheduler, 1, "think 3")
    assert [scheduler.advance() for _ in range(3)] == [None] * 3
    assert isinstance(scheduler.advance(), JobEnded)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_abort_wherever_a_job_is(scheduler, stage, position):
    for job in range(3):
        start(scheduler, job, "2")
    for _ in range(2):
        scheduler.advance()
    scheduler.obey(AbortJob(position))
    scheduler.obey(AbortJob(position))
    assert ("a", 0, 2) in gauges(scheduler)
    assert stage.closed == (["2"] if position < 2 else [])  # one that waits hasn't begun
    events = run(scheduler)
    assert position not in {e.job for e in events}
    assert len([e for e in events if isinstance(e, JobEnded)]) == 2


def test_a_job_that_will_not_end_cleanly_hurts_nobody(scheduler, caplog):
    start(scheduler, 1, "9")
    scheduler.advance()
    with caplog.at_level(logging.ERROR):
        scheduler.obey(AbortJob(1))
    assert "didn't end cleanly" in caplog.text
    assert gauges(scheduler) == {("a", 0, 0), ("b", 0, 0)}


@pytest.mark.parametrize(
    ("text", "message", "field", "logged"),
    [
        ("raise bad", "no seed here", "seed", False),
        ("raise words", "in our words", None, False),
        ("raise any", "ZeroDivisionError: by what", None, True),
    ],
)
def test_a_failure_is_one_jobs(scheduler, caplog, text, message, field, logged):
    start(scheduler, 1, text)
    start(scheduler, 2, "1")
    events = run(scheduler)
    assert events[0] == JobFailed(1, message, field)
    assert [type(e) for e in events[1:]] == [Produced, JobEnded]
    assert bool(caplog.records) is logged
    assert gauges(scheduler) == {("a", 0, 0), ("b", 0, 0)}


def test_what_nobody_takes_is_not_made(scheduler):
    start(scheduler, 1, str(3 * WINDOW))
    start(scheduler, 2, "1")
    assert len(run(scheduler)) == WINDOW + 2  # its window, and the other job whole
    assert not scheduler.busy
    scheduler.obey(Grant(1, 5))
    scheduler.obey(Grant(1, 5))
    assert len(run(scheduler)) == 10
    scheduler.obey(AbortJob(1))
    scheduler.obey(Grant(1, 5))
    assert not scheduler.busy


def test_a_slow_reader_leaves_its_place_to_others(scheduler):
    start(scheduler, 1, str(2 * WINDOW), "b")
    start(scheduler, 2, "1", "b")
    assert [e.job for e in run(scheduler)][WINDOW:] == [2, 2]
    assert scheduler.stats()[1] == StageStats(stage="b", waiting=0, running=0, unread=1)
    start(scheduler, 3, str(2 * WINDOW), "b")
    start(scheduler, 4, "1", "b")
    scheduler.obey(Grant(1, 1))
    scheduler.obey(Grant(1, 1))
    assert scheduler.stats()[1] == StageStats(stage="b", waiting=2, running=1, unread=0)
    run(scheduler)
    assert scheduler.stats()[1] == StageStats(stage="b", waiting=0, running=0, unread=2)
    for job in (1, 3):
        scheduler.obey(AbortJob(job))
    assert gauges(scheduler) == {("a", 0, 0), ("b", 0, 0)}


def test_times_are_measured_and_what_was_not_is_absent(scheduler, clock):
    start(scheduler, 0, "3", "b")
    start(scheduler, 1, "think 1", "b")
    clock.now += 1.0
    for step in (2.0, 3.0, 5.0):
        clock.now += step
        scheduler.advance()
    clock.now += 1.0
    metrics = scheduler.advance().metrics
    assert (metrics.stage, metrics.wait_s, metrics.first_output_s) == ("b", 0.0, 3.0)
    assert (metrics.inter_output_mean_s, metrics.inter_output_max_s) == (4.0, 5.0)
    assert (metrics.total_s, metrics.outputs) == (12.0, 3)
    silent = run(scheduler)[-1].metrics
    assert (silent.wait_s, silent.total_s, silent.outputs) == (12.0, 12.0, 0)
    assert silent.first_output_s is silent.inter_output_mean_s is silent.inter_output_max_s is None
