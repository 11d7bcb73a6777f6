"""The owner of vLLM's process, with a stand-in for that process."""

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_runs import HANGS_S, Reader
from requesting import engine_config, say

from engine.api import EngineLost, EngineUnavailable, NotServed
from engine.backoff import Backoff
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine
from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.values import Finished, StageStats
from engine.stages.vllm import home

ENDLESS = "word " * 100_000


@asynccontextmanager
async def started(monkeypatch, model="m", installed=True):
    found = object() if installed else None
    monkeypatch.setattr(home.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(home, "WORKER", "stand_in")
    monkeypatch.setattr(home, "RETRY", Backoff(first_s=0.01))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    stages = {
        "reply": StageConfig(kind="vllm", options={"model": model}),
        "last": StageConfig(kind="echo", inputs=("reply",), final=True),
    }
    config = engine_config(PipelineConfig(model="q", stages=stages))
    engine = InProcessEngine(lambda: EchoModel(2), config)
    await engine.start()
    async with Reader(engine):
        yield engine


async def submitted(engine, text):
    """A request, as soon as the model is there."""
    async with asyncio.timeout(HANGS_S):
        while True:
            try:
                return engine.submit(say(text))
            except EngineUnavailable:
                await asyncio.sleep(0.005)


async def answer(request):
    async with asyncio.timeout(HANGS_S):
        *pieces, last = [output async for output in request]
    assert isinstance(last, Finished)
    return "".join(piece.text for piece in pieces)


async def vllm_stats(engine):
    return next(s for s in (await engine.stats()).stages if s.stage == "reply")


def assert_no_children():
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_a_request_goes_through_both_homes(monkeypatch):
    async with started(monkeypatch) as engine:
        assert await answer(await submitted(engine, "a b c " * 60)) == ("a b c " * 60).rstrip()
        many = [engine.submit(say(f"text {n}")) for n in range(20)]
        assert [await answer(r) for r in many] == [f"text {n}" for n in range(20)]


async def test_an_abort_reaches_the_process(monkeypatch):
    async with started(monkeypatch) as engine:
        request = await submitted(engine, ENDLESS)
        async with asyncio.timeout(HANGS_S):
            while (await vllm_stats(engine)).running != 1:
                await asyncio.sleep(0)
            request.abort()
            while (await vllm_stats(engine)).running:
                await asyncio.sleep(0)


async def test_a_dead_process_fails_its_requests_and_is_started_again(monkeypatch, caplog):
    async with started(monkeypatch) as engine:
        waiting = await submitted(engine, ENDLESS)
        engine.submit(say("die"))
        with pytest.raises(EngineLost, match="ended with code 3"):
            await answer(waiting)
        with pytest.raises(EngineUnavailable):
            engine.submit(say("a"))
        assert await answer(await submitted(engine, "again")) == "again"


async def test_what_cannot_be_loaded_says_why(monkeypatch, caplog):
    async with started(monkeypatch, "broken") as engine:
        async with asyncio.timeout(HANGS_S):
            while "no such weights" not in caplog.text:
                await asyncio.sleep(0.005)
        with pytest.raises(EngineUnavailable, match=r"can't be loaded"):
            engine.submit(say("a"))


async def test_stop_while_it_loads_leaves_no_process(monkeypatch):
    async with started(monkeypatch, "never") as engine:
        with pytest.raises(EngineUnavailable):
            engine.submit(say("a"))
    assert_no_children()


async def test_stop_under_load_leaves_no_process(monkeypatch):
    async with started(monkeypatch) as engine:
        request = await submitted(engine, ENDLESS)
    with pytest.raises(EngineUnavailable, match="stopped"):
        await answer(request)
    assert_no_children()


async def test_without_vllm_it_says_what_to_install(monkeypatch, caplog):
    async with started(monkeypatch, installed=False) as engine:
        with pytest.raises(NotServed, match=r"pip install 'duplex-media-server\[vllm\]'"):
            engine.submit(say("a"))
        assert await vllm_stats(engine) == StageStats(stage="reply", waiting=0, running=0)
    assert "vLLM is not installed" in caplog.text
