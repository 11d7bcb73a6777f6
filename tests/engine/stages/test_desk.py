import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from requesting import DIAMOND, pipeline, say

from engine.api import BadParams, EngineError, EngineLost, EngineUnavailable, TooManyRequests
from engine.stages.desk import RequestDesk
from engine.stages.kinds import build_stages
from engine.stages.messages import WINDOW, AbortJob, JobFailed, StartJob
from engine.stages.values import Finished, TextPiece, ToolCallPiece


class House:
    """A desk over the real scheduler, driven by hand."""

    def __init__(self, config):
        self.config = config
        self.scheduler = build_stages(config)
        self.sent = []
        self.refuse = None
        self.desk = RequestDesk(config, self._send)

    def _send(self, stage, command):
        if self.refuse and isinstance(command, StartJob):
            raise self.refuse
        self.sent.append(command)
        self.scheduler.obey(command)

    def stage_names(self):
        return list(self.config.stages)

    def turn(self):
        if event := self.scheduler.advance():
            self.desk.take(event)

    def run(self):
        while self.scheduler.busy:
            self.turn()

    def assert_empty(self):
        assert (self.desk.requests, self.desk.jobs) == (0, 0)
        assert all(s.waiting == s.running == s.unread == 0 for s in self.scheduler.stats())
        assert not self.scheduler.busy


async def read(stream):
    """All outputs that are there or will come by themselves."""
    return [output async for output in stream]


def text_of(outputs):
    return "".join(output.text for output in outputs if isinstance(output, TextPiece))


async def test_a_request_is_answered_and_measured():
    house = House(pipeline())
    stream = house.desk.submit(say("one two three"))
    house.run()
    *pieces, last = await read(stream)
    assert text_of(pieces) == "one two three"
    assert isinstance(last, Finished)
    assert (last.end.reason, last.end.output_tokens, last.end.prompt_tokens) == ("stop", 3, 3)
    assert [(m.stage, m.outputs) for m in last.metrics] == [("reply", 3)]
    assert (stream.made.text, stream.made.tokens) == ("one two three", 3)
    house.assert_empty()
    assert [type(c) for c in house.sent] == [StartJob]


async def test_a_graph_is_walked_in_order():
    house = House(DIAMOND)
    stream = house.desk.submit(say("a b"))
    house.run()
    *pieces, last = await read(stream)
    assert text_of(pieces) == "a b a b"
    assert [m.stage for m in last.metrics][-2:] == ["left", "both"]
    assert {m.stage for m in last.metrics} == {"first", "left", "right", "both"}
    house.assert_empty()


async def test_long_inputs_pass_from_stage_to_stage():
    house = House(DIAMOND)
    stream = house.desk.submit(say("w " * 5 * WINDOW))
    house.run()
    seen = 0
    async for output in stream:
        seen += isinstance(output, TextPiece)
        house.run()
    assert seen == 10 * WINDOW
    house.assert_empty()


async def test_a_reader_that_does_not_read_bounds_its_queue():
    house = House(pipeline())
    slow = house.desk.submit(say("w " * 5 * WINDOW))
    other = house.desk.submit(say("quick"))
    house.run()
    assert slow.waiting == WINDOW
    assert text_of(await read(other)) == "quick"
    seen = 0
    async for _ in slow:
        seen += 1
        house.run()
        assert slow.waiting <= WINDOW + 1
    assert seen == 5 * WINDOW + 1
    house.assert_empty()


async def test_full_is_a_refusal_and_leaves_nothing():
    house = House(pipeline(max_requests=2))
    streams = [house.desk.submit(say("a")) for _ in range(2)]
    with pytest.raises(TooManyRequests, match="2 requests are under way"):
        house.desk.submit(say("b"))
    streams[0].abort()
    house.desk.submit(say("c")).abort()
    house.run()
    house.assert_empty()


async def test_abort_is_idempotent_and_returns_what_was_made():
    house = House(pipeline())
    stream = house.desk.submit(say("one two three"))
    house.turn()
    house.turn()
    assert stream.abort().text == "one two"
    assert stream.abort() == stream.made
    assert await read(stream) == []
    assert [type(c) for c in house.sent] == [StartJob, AbortJob]
    house.assert_empty()


async def test_abort_after_the_end_aborts_nothing():
    house = House(pipeline())
    stream = house.desk.submit(say("one"))
    house.run()
    assert stream.abort().text == "one"
    assert [type(c) for c in house.sent] == [StartJob]
    assert await read(stream) == []


async def test_abort_reaches_every_job_of_the_request():
    house = House(DIAMOND)
    stream = house.desk.submit(say("a b c"))
    house.turn()
    stream.abort()
    assert [type(c) for c in house.sent] == [StartJob, StartJob, AbortJob, AbortJob]
    house.assert_empty()


async def test_a_waiting_reader_is_woken_by_abort():
    house = House(pipeline())
    stream = house.desk.submit(say("one"))
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.abort()
    assert await reading == []


@pytest.mark.parametrize(
    ("field", "kind"), [(None, EngineError), ("", BadParams), ("seed", BadParams)]
)
async def test_a_failed_job_fails_its_request_after_its_output(field, kind):
    house = House(pipeline())
    stream = house.desk.submit(say("one two"))
    other = house.desk.submit(say("other"))
    house.turn()
    house.desk.take(JobFailed(house.sent[0].job, "broke", field))
    assert (await anext(stream)).text == "one"
    with pytest.raises(kind, match="broke") as caught:
        await anext(stream)
    assert getattr(caught.value, "field", None) == field
    assert await read(stream) == []
    house.scheduler.obey(AbortJob(house.sent[0].job))  # the scheduler in place of which we spoke
    house.run()
    assert text_of(await read(other)) == "other"
    house.assert_empty()


async def test_a_lost_home_ends_its_requests_and_sends_it_nothing():
    house = House(DIAMOND)
    streams = [house.desk.submit(say("a")) for _ in range(2)]
    sent = len(house.sent)
    house.desk.lose(frozenset(house.stage_names()), EngineLost("gone"))
    assert len(house.sent) == sent
    for stream in streams:
        with pytest.raises(EngineLost, match="gone"):
            await anext(stream)
    assert (house.desk.requests, house.desk.jobs) == (0, 0)


async def test_a_home_that_is_lost_ends_no_request_elsewhere():
    house = House(DIAMOND)
    stream = house.desk.submit(say("a"))
    house.desk.lose(frozenset(("both",)), EngineLost("gone"))  # hasn't begun there
    house.run()
    assert text_of(await read(stream)) == "a a"


async def test_a_home_that_cannot_begin_refuses_and_later_fails():
    house = House(DIAMOND)
    house.refuse = EngineUnavailable("still loading")
    with pytest.raises(EngineUnavailable):
        house.desk.submit(say("a"))
    house.assert_empty()
    house.refuse = None
    stream = house.desk.submit(say("a"))
    house.refuse = EngineUnavailable("gone again")
    house.run()
    with pytest.raises(EngineUnavailable, match="gone again"):
        await anext(stream)
    house.assert_empty()


async def test_shutdown_ends_every_stream_with_an_error():
    house = House(pipeline(max_running=1))
    streams = [house.desk.submit(say("a b")) for _ in range(3)]
    house.turn()
    house.desk.close(EngineUnavailable("stopped"))
    house.desk.close(EngineUnavailable("stopped"))
    assert (await anext(streams[0])).text == "a"
    for stream in streams:
        with pytest.raises(EngineUnavailable, match="stopped"):
            await anext(stream)
    with pytest.raises(EngineUnavailable):
        house.desk.submit(say("a"))
    house.assert_empty()


async def test_tool_calls_grow():
    house = House(pipeline())
    stream = house.desk.submit(say("x"))
    for piece in (
        ToolCallPiece(0, id="c0", name="add"),
        ToolCallPiece(0, arguments='{"a":'),
        ToolCallPiece(1, id="c1", name="sub"),
        ToolCallPiece(0, arguments=" 1}"),
    ):
        stream.put(piece)
    calls = stream.abort().tool_calls
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
        ("c0", "add", '{"a": 1}'),
        ("c1", "sub", ""),
    ]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "turn", "turn", "turn", "read", "abort", "lose"]),
        st.integers(0, 200),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(ACTIONS, st.booleans(), st.booleans())
def test_whatever_happens_nothing_is_left(actions, graph, shutdown):
    """Random submit, read, abort, loss and shutdown: each stream ends once, nothing remains."""

    async def play():
        house = House(DIAMOND if graph else pipeline(max_requests=3, max_running=1))
        streams = []
        for action, number in actions:
            stream = streams[number % len(streams)] if streams else None
            match action:
                case "submit":
                    try:
                        streams.append(house.desk.submit(say("w " * number)))
                    except TooManyRequests:
                        assert house.desk.requests >= 3
                case "turn":
                    for _ in range(number):
                        house.turn()
                case "read" if stream and (stream.waiting or stream.closed):
                    with contextlib.suppress(EngineLost):
                        await anext(stream, None)
                case "abort" if stream:
                    assert stream.abort() == stream.abort()
                case "lose":
                    for name in house.stage_names():  # the process is a new one, without jobs
                        house.desk.lose(frozenset((name,)), EngineLost("gone"))
                    house.scheduler = build_stages(house.config)
            assert all(s.waiting <= WINDOW + 1 for s in streams)
        if shutdown:
            house.desk.close(EngineUnavailable("stopped"))
        for stream in streams:
            ends = 0
            house.run()
            try:
                async for output in stream:
                    ends += isinstance(output, Finished)
                    house.run()
            except (EngineLost, EngineUnavailable):
                ends += 1
            assert ends <= 1
            assert await anext(stream, None) is None
            assert stream.closed
        house.assert_empty()

    asyncio.run(play())
