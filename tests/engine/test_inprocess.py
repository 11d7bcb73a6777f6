import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from engine_runs import HANGS_S, Reader, frame, until_ready

from engine import recalibration
from engine.api import (
    BadParams,
    EngineConfig,
    EngineError,
    EngineLost,
    EngineUnavailable,
    Frame,
    NoFreeSlot,
    OpenParams,
    Pcm,
)
from engine.backoff import Backoff
from engine.echo import FRAME_SIZE, EchoModel
from engine.inprocess import InProcessEngine
from engine.model import StepResult

PARAMS = OpenParams()
CONFIG = EngineConfig(model="echo", slots=2, max_in_flight=3)
SOON = Backoff(first_s=0.001, longest_s=60.0)


class GatedEcho(EchoModel):
    """Echo whose steps and prefills wait for a gate, and which fails when told to."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.gate = threading.Event()
        self.gate.set()
        self.stepping = threading.Event()
        self.prefilling = threading.Event()
        self.fail_step = False
        self.fail_prefill = False
        self.threads: set[str] = set()

    def check(self, params: OpenParams) -> None:
        if params.voice is not None:
            super().check(params)

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        if params.persona == "fail":
            raise RuntimeError("prefill broke")
        yield
        while params.persona == "forever":
            self.prefilling.set()
            yield

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        self.threads.add(threading.current_thread().name)
        self.stepping.set()
        self.gate.wait(10)
        if self.fail_step:
            raise RuntimeError("the device is gone")
        return super().step(rows, pcm)


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


def engine_of(model: EchoModel | None = None, config: EngineConfig = CONFIG) -> InProcessEngine:
    return InProcessEngine(lambda: model or EchoModel(2), config, backoff=SOON)


async def test_a_session_hears_itself() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    with pytest.raises(EngineUnavailable):
        _ = engine.spec
    assert not engine.ready
    await engine.start()
    assert engine.ready
    assert (engine.spec.model, engine.spec.slots, engine.spec.max_in_flight) == ("echo", 2, 3)
    async with Reader(engine) as reader:
        lease = await engine.open(PARAMS)
        engine.feed([frame(lease.id, 0, 5), frame(lease.id, 1, 5)])
        first, second = await reader.outputs(lease, 2)
        assert [(o.epoch, o.index) for o in (first, second)] == [(5, 0), (5, 1)]
        assert second.pcm is not None
        assert np.array_equal(second.pcm, frame(lease.id, 1).pcm)
        await engine.close(lease)
        await engine.close(lease)
        stats = await engine.stats()
        assert (stats.live, stats.frames, stats.stale_frames) == (0, 2, 0)
    assert model.threads == {"engine"}
    assert not engine.ready


async def test_frames_that_come_during_a_step_form_one_batch() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    async with Reader(engine) as reader:
        one, two = await engine.open(PARAMS), await engine.open(PARAMS)
        model.gate.clear()
        model.stepping.clear()
        engine.feed([frame(one.id, 0)])
        await wait_for(model.stepping)
        engine.feed([frame(two.id, 0)])
        engine.feed([frame(one.id, 1)])
        model.gate.set()
        await reader.outputs(one, 2)
        assert [[o.lease for o in step] for step in reader.steps] == [[one.id], [one.id, two.id]]
        assert reader.steps[1][0].timings.rows == 2


async def test_close_during_a_step() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    async with Reader(engine) as reader:
        lease = await engine.open(PARAMS)
        model.gate.clear()
        model.stepping.clear()
        engine.feed([frame(lease.id, 0), frame(lease.id, 1)])
        await wait_for(model.stepping)
        await engine.close(lease)
        engine.feed([frame(lease.id, 2)])
        model.gate.set()
        stats = await engine.stats()
        assert (stats.live, stats.queued_frames, stats.stale_frames) == (0, 0, 1)
        again = await engine.open(PARAMS)
        assert again.slot == lease.slot
        assert again.id > lease.id
        assert [o.index for o in reader.by_lease[lease.id]] == [0]


async def test_refusals() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    async with Reader(engine):
        with pytest.raises(BadParams) as caught:
            await engine.open(OpenParams(voice="x"))
        assert caught.value.field == "voice"
        with pytest.raises(EngineError, match="RuntimeError: prefill broke"):
            await engine.open(OpenParams(persona="fail"))
        await engine.open(PARAMS)
        await engine.open(PARAMS)
        with pytest.raises(NoFreeSlot):
            await engine.open(PARAMS)


async def test_a_cancelled_open_leaves_nothing() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    async with Reader(engine):
        opening = asyncio.create_task(engine.open(OpenParams(persona="forever")))
        await wait_for(model.prefilling)
        assert (await engine.stats()).prefill == 1
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        first = await engine.open(PARAMS)
        second = await engine.open(PARAMS)
        assert {first.slot, second.slot} == {0, 1}


async def test_an_open_cancelled_as_it_is_answered_leaves_nothing() -> None:
    engine = engine_of()
    await engine.start()
    async with Reader(engine):
        for turns in range(6):
            opening = asyncio.create_task(engine.open(PARAMS))
            while not (engine._opens and next(iter(engine._opens.values())).done()):
                await asyncio.sleep(0)
                if turns == 0:
                    break
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert (await engine.stats()).live == 0
            assert not engine._leases
            assert not engine._opens


async def test_frames_of_the_wrong_shape_or_with_video_are_refused_as_a_whole() -> None:
    engine = engine_of()
    await engine.start()
    async with Reader(engine):
        lease = await engine.open(PARAMS)
        bad = Frame(lease.id, 0, 1, np.zeros(7, np.float32))
        with pytest.raises(EngineError, match="frame 1"):
            engine.feed([frame(lease.id), bad])
        video = Frame(lease.id, 0, 0, np.zeros(FRAME_SIZE, np.float32), (b"jpeg",))
        with pytest.raises(EngineError, match="video"):
            engine.feed([video])
        assert (await engine.stats()).frames == 0


async def test_a_surplus_frame_ends_its_lease() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    async with Reader(engine) as reader:
        bad, good = await engine.open(PARAMS), await engine.open(PARAMS)
        engine.feed([frame(bad.id, i) for i in range(5)] + [frame(good.id)])
        (failed,) = await reader.outputs(bad, 1)
        assert "more than 3 frames" in failed.error
        assert (await reader.outputs(good, 1))[0].error == ""
        assert engine._leases == {good.id}
        engine.feed([frame(bad.id)])
        await engine.close(bad)
        stats = await engine.stats()
        assert (stats.live, stats.stale_frames) == (1, 2)


async def test_a_failed_step_loses_the_engine_which_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = [GatedEcho(2), GatedEcho(2)]
    made: list[EchoModel] = []

    def build() -> EchoModel:
        made.append(models[len(made)])
        return made[-1]

    engine = InProcessEngine(build, CONFIG, backoff=SOON)
    await engine.start()
    async with Reader(engine) as reader:
        lease = await engine.open(PARAMS)
        waiting = asyncio.create_task(engine.open(OpenParams(persona="forever")))
        await wait_for(models[0].prefilling)
        models[0].fail_step = True
        engine.feed([frame(lease.id)])
        with pytest.raises(EngineLost, match="RuntimeError: the device is gone"):
            await waiting
        assert "the device is gone" in str(await reader.loss())
        await until_ready(engine, 1)
        engine.feed([frame(lease.id)])
        new = await engine.open(PARAMS)
        assert new.id > lease.id
        engine.feed([frame(new.id)])
        await reader.outputs(new, 1)
        stats = await engine.stats()
        assert (stats.restarts, stats.stale_frames, stats.live) == (1, 1, 1)
        assert len(reader.losses) == 1
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_slots_follow_the_time_of_steps_while_nobody_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an engine that was started beside something that took its time."""
    monkeypatch.setattr(recalibration, "FIRST_S", 0.01)
    busy = threading.Event()
    busy.set()

    class Slowed(EchoModel):
        def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
            if busy.is_set():
                time.sleep(0.1)
            return super().step(rows, pcm)

    config = EngineConfig(model="echo", slots="auto", admission="measured")
    engine = engine_of(Slowed(2, slots_by_memory=True), config)
    async with Reader(engine):
        await engine.start()
        assert engine.spec.slots == 1
        busy.clear()
        async with asyncio.timeout(HANGS_S):
            while engine.spec.slots == 1:
                await asyncio.sleep(0.005)
        assert engine.spec.capacity.startswith("2 sessions: memory allows 2")
        for _ in range(2):
            await engine.open(PARAMS)
        assert (await engine.stats()).free == 0


async def test_a_model_that_cannot_be_built_says_why() -> None:
    def build() -> EchoModel:
        raise EngineError("no such voice directory")

    engine = InProcessEngine(build, CONFIG, backoff=SOON)
    with pytest.raises(EngineError, match=r"^no such voice directory$"):
        await engine.start()
    await engine.stop()


async def test_stop_before_during_and_after_start() -> None:
    engine = engine_of()
    await engine.stop()
    with pytest.raises(EngineError):
        await engine.start()

    gate = threading.Event()

    def build() -> EchoModel:
        gate.wait(10)
        return EchoModel(2)

    engine = InProcessEngine(build, CONFIG, backoff=SOON)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(engine.stop())
    gate.set()
    await stopping
    with pytest.raises(EngineUnavailable, match="stopped"):
        await starting

    engine = engine_of()
    await engine.start()
    await asyncio.gather(engine.stop(), engine.stop())
    await engine.stop()
    with pytest.raises(EngineUnavailable):
        await engine.open(PARAMS)
    with pytest.raises(EngineUnavailable):
        await engine.stats()
    assert [step async for step in engine.steps()] == []


async def test_stop_ends_pending_opens() -> None:
    model = GatedEcho(2)
    engine = engine_of(model)
    await engine.start()
    opening = asyncio.create_task(engine.open(OpenParams(persona="forever")))
    await wait_for(model.prefilling)
    await engine.stop()
    with pytest.raises(EngineUnavailable):
        await opening


async def test_an_engine_that_is_given_up_in_a_step_leaves_the_gate_open() -> None:
    model = GatedEcho(2)
    engine = InProcessEngine(lambda: model, CONFIG, backoff=Backoff(first_s=60))
    before = set(threading.enumerate())
    await engine.start()
    (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "engine")
    async with Reader(engine) as reader:
        lease = await engine.open(PARAMS)
        model.gate.clear()
        engine.feed([frame(lease.id, index) for index in range(2)])
        await wait_for(model.stepping)
        assert engine.gate.closed
        assert engine._link is not None
        engine._link.abort("given up")
        await reader.loss()
        model.gate.set()
        await asyncio.to_thread(thread.join, HANGS_S)
        assert not engine.gate.closed


async def test_a_reader_that_never_comes_loses_the_engine() -> None:
    config = EngineConfig(model="echo", slots=1, max_in_flight=1)
    engine = InProcessEngine(lambda: EchoModel(1), config, backoff=Backoff(first_s=60))
    await engine.start()
    for count in (1, 2):
        lease = await engine.open(PARAMS)
        engine.feed([frame(lease.id)])
        while (await engine.stats()).frames < count:
            pass
        await engine.close(lease)
    lease = await engine.open(PARAMS)
    engine.feed([frame(lease.id)])
    while engine.ready:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineLost, match="nobody reads"):
        async for _ in engine.steps():
            pass
    await engine.stop()


async def test_no_thread_is_left() -> None:
    for _ in range(20):
        engine = engine_of()
        await engine.start()
        await engine.stop()
    for thread in threading.enumerate():
        if thread.name == "engine":
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
