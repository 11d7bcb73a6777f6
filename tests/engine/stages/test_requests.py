"""Requests through whole engines, in a thread and in a child process."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest
from engine_runs import HANGS_S, Reader, frame, until_ready
from hypothesis import given, settings
from hypothesis import strategies as st
from requesting import DIAMOND, engine_config, pipeline, say

from engine.api import (
    EngineLost,
    EngineUnavailable,
    NotServed,
    OpenParams,
    TooManyRequests,
)
from engine.backoff import Backoff
from engine.child import ChildEngine
from engine.core import EngineCore
from engine.echo import EchoModel
from engine.gate import Gate
from engine.inprocess import InProcessEngine
from engine.messages import Feed, Live, Open, Outputs
from engine.serve import serve
from engine.stages.graph import PipelineError
from engine.stages.kinds import build_stages
from engine.stages.messages import AbortJob, Produced, StartJob
from engine.stages.values import Finished, StageInput, StageStats

SOON = Backoff(first_s=0.001, longest_s=60.0)
ENDLESS = "word " * 100_000


def inprocess(chat):
    config = engine_config(chat)
    return InProcessEngine(lambda: EchoModel(2), config, backoff=SOON)


def child(chat):
    return ChildEngine(engine_config(chat), backoff=SOON)


@asynccontextmanager
async def started(build, chat):
    engine = build(chat)
    await engine.start()
    async with Reader(engine) as reader:
        yield engine, reader


async def answer(request):
    async with asyncio.timeout(HANGS_S):
        *pieces, last = [output async for output in request]
    assert isinstance(last, Finished)
    return "".join(piece.text for piece in pieces), last


async def exhaust(request):
    async for _ in request:
        pass


async def idle(engine):
    """Waits until no stage has anything; hangs, and so fails, if a request leaks."""
    async with asyncio.timeout(HANGS_S):
        while any(s.waiting or s.running or s.unread for s in (await engine.stats()).stages):
            pass


@pytest.mark.parametrize("build", [inprocess, child])
async def test_requests_are_answered(build):
    async with started(build, DIAMOND) as (engine, _):
        text, last = await answer(engine.submit(say("hello there")))
        assert text == "hello there hello there"
        assert [m.stage for m in last.metrics][-1] == "both"
        assert len(last.metrics) == 4
        assert last.metrics[-1].first_output_s > 0
        assert {s.stage for s in (await engine.stats()).stages} == set(DIAMOND.stages)
        texts = [f"request {n} " * n for n in range(1, 20)]
        found = await asyncio.gather(*(answer(engine.submit(say(t))) for t in texts))
        assert [text for text, _ in found] == [f"{t.strip()} {t.strip()}" for t in texts]
        await idle(engine)


@pytest.mark.parametrize("build", [inprocess, child])
async def test_gauges_are_the_schedulers_own(build):
    async with started(build, pipeline(max_running=2, step_ms=20)) as (engine, _):
        requests = [engine.submit(say(ENDLESS)) for _ in range(5)]
        assert (await engine.stats()).stages == (StageStats(stage="reply", waiting=3, running=2),)
        requests[0].abort()
        assert (await engine.stats()).stages == (StageStats(stage="reply", waiting=2, running=2),)
        for request in requests:
            request.abort()
        assert (await engine.stats()).stages == (StageStats(stage="reply", waiting=0, running=0),)


@pytest.mark.parametrize("build", [inprocess, child])
async def test_a_conversation_goes_on_beside_a_request(build):
    async with started(build, pipeline(step_ms=1)) as (engine, reader):
        lease = await engine.open(OpenParams())
        request = engine.submit(say(ENDLESS))
        for index in range(30):
            await anext(request)
            engine.feed([frame(lease.id, index)])
            await reader.outputs(lease, index + 1)
        assert request.abort().tokens >= 30
        assert await anext(request, None) is None
        await idle(engine)


@pytest.mark.parametrize("build", [inprocess, child])
async def test_stop_ends_every_stream_with_an_error(build):
    async with started(build, pipeline(max_running=1)) as (engine, _):
        requests = [engine.submit(say(ENDLESS)) for _ in range(3)]
        await anext(requests[0])
        await engine.stop()
        for request in requests:
            with pytest.raises(EngineUnavailable, match="stopped"):
                await exhaust(request)
        with pytest.raises(EngineUnavailable):
            engine.submit(say("a"))


@pytest.mark.parametrize("build", [inprocess, child])
async def test_without_a_pipeline_nothing_is_served(build):
    async with started(build, None) as (engine, _):
        with pytest.raises(NotServed, match=r"install duplex-media-server\[vllm\]"):
            engine.submit(say("a"))
        assert (await engine.stats()).stages == ()


async def test_before_the_start_nothing_is_admitted():
    engine = child(pipeline())
    with pytest.raises(EngineUnavailable, match="hasn't started"):
        engine.submit(say("a"))


def test_a_wrong_pipeline_is_refused_before_anything_is_started():
    with pytest.raises(PipelineError, match=r"stages\.reply\.options"):
        child(pipeline(step_s=1))


async def test_full_is_refused_at_once():
    async with started(inprocess, pipeline(max_requests=1)) as (engine, _):
        request = engine.submit(say(ENDLESS))
        with pytest.raises(TooManyRequests):
            engine.submit(say("b"))
        request.abort()
        assert (await answer(engine.submit(say("c"))))[0] == "c"


async def test_a_dead_engine_fails_its_requests_and_the_next_one_serves():
    async with started(child, pipeline()) as (engine, reader):
        requests = [engine.submit(say(ENDLESS)) for _ in range(3)]
        await anext(requests[0])
        os.kill(engine.pid, signal.SIGKILL)
        await reader.loss()
        for request in requests:
            with pytest.raises(EngineLost, match="SIGKILL"):
                await exhaust(request)
        with pytest.raises(EngineUnavailable):
            engine.submit(say("a"))
        await until_ready(engine, 1)
        assert (await answer(engine.submit(say("again"))))[0] == "again"


class ScriptedPort:
    """An owner that says its lines, one list a turn, and notes what it is told."""

    def __init__(self, turns):
        self.turns = iter(turns)
        self.waits = []
        self.told = []

    def receive(self, *, wait_s):
        self.waits.append(wait_s)
        return next(self.turns, None)

    def send(self, event):
        self.told.append(type(event))


def test_a_ready_frame_waits_for_one_piece_at_most():
    """Each turn steps first and then does one piece: of a prefill, or else of a stage."""
    core = EngineCore(EchoModel(2), stages=build_stages(pipeline()))
    job = StartJob(7, "reply", StageInput(say(ENDLESS)))
    port = ScriptedPort(
        [
            [Open(0, OpenParams()), job],
            [Feed([frame(0, 0), frame(0, 1)], 0.0)],
            [],
            [Open(1, OpenParams()), Feed([frame(0, 2)], 0.0)],
            [AbortJob(7)],
            [],
        ]
    )
    serve(core, port, Gate())
    first = [Live, Outputs, Produced, Outputs, Produced]
    assert port.told == [*first, Outputs, Live]
    assert port.waits == [None, 0, 0, 0, 0, None, None]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "read", "read", "abort", "leave", "pause", "talk"]),
        st.integers(0, 120),
    ),
    max_size=30,
)


async def play(engine, reader, lease, actions):
    requests, fed = [], len(reader.by_lease[lease.id])
    for action, number in actions:
        request = requests[number % len(requests)] if requests else None
        match action:
            case "submit":
                try:
                    requests.append(engine.submit(say("w " * number)))
                except TooManyRequests:
                    assert len(requests) >= 4
            case "read" if request:
                for _ in range(number):
                    await anext(request, None)
            case "abort" if request:
                assert request.abort().tokens <= 120
            case "leave" if request:  # a reader that is cancelled as it waits
                reading = asyncio.create_task(anext(request, None))
                await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                request.abort()
            case "pause":
                await asyncio.sleep(0)
            case "talk":
                engine.feed([frame(lease.id, fed)])
                fed += 1
                await reader.outputs(lease, fed)
    for request in requests[::2]:
        request.abort()
    for request in requests[1::2]:
        async with asyncio.timeout(HANGS_S):
            ends = [output async for output in request if isinstance(output, Finished)]
        assert len(ends) <= 1  # it may have been read before
    await idle(engine)


@pytest.mark.parametrize("build", [inprocess, child])
def test_whatever_callers_do_nothing_is_left_behind(build):
    with asyncio.Runner() as runner:
        context = started(build, pipeline(max_requests=4, max_running=2))
        engine, reader = runner.run(context.__aenter__())
        lease = runner.run(engine.open(OpenParams()))
        tasks = len(runner.run(all_tasks()))

        @settings(max_examples=40, deadline=None)
        @given(ACTIONS)
        def check(actions):
            runner.run(play(engine, reader, lease, actions))
            assert len(runner.run(all_tasks())) == tasks

        check()
        runner.run(context.__aexit__(None, None, None))


async def all_tasks():
    return asyncio.all_tasks()
