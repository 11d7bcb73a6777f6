import asyncio
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import uvloop
from engine_runs import Reader, frame, until_ready
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import engine
from engine import child
from engine.api import (
    BadParams,
    EngineConfig,
    EngineError,
    EngineLost,
    EngineUnavailable,
    Frame,
    Lease,
    NoFreeSlot,
    OpenParams,
)
from engine.backoff import Backoff
from engine.child import ChildEngine
from engine.echo import FRAME_SIZE
from engine.shm import RingFull
from tests.pictures import encoded

ROOT = Path(engine.__file__).parents[1]
FAULTS = Path(__file__).parent / "faults"
RAISE, HANG, TALK, SLEEP = -1.0, -2.0, -3.0, -4.0
PARAMS = OpenParams()
CONFIG = EngineConfig(model="echo", slots=2, max_in_flight=3, threads=1)
SOON = Backoff(first_s=0.001, longest_s=60.0)

Started = Callable[..., AbstractAsyncContextManager[tuple[ChildEngine, Reader]]]


@asynccontextmanager
async def started(config: EngineConfig = CONFIG) -> AsyncIterator[tuple[ChildEngine, Reader]]:
    engine = ChildEngine(config, backoff=SOON)
    await engine.start()
    async with Reader(engine) as reader:
        yield engine, reader


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children whose echo model does what `faults` says."""
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))


def special(lease: Lease, sample: float) -> Frame:
    return Frame(lease.id, 0, 0, np.full(FRAME_SIZE, sample, np.float32))


async def gone(pid: int) -> bool:
    """Waits until a process, not a child of ours, is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], 10)
    finally:
        os.close(descriptor)
    return bool(readable)


def hangs(pid: int) -> bool:
    ignored = Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0]
    return bool(int(ignored, 16) >> (signal.SIGUSR1 - 1) & 1)


def assert_no_children() -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_a_session_hears_itself() -> None:
    async with started() as (engine, reader):
        assert engine.ready
        assert (engine.spec.slots, engine.spec.max_in_flight) == (2, 3)
        lease = await engine.open(PARAMS)
        rng = np.random.default_rng(0)
        sent = [rng.standard_normal(FRAME_SIZE).astype(np.float32) for _ in range(40)]
        for index, pcm in enumerate(sent):
            engine.feed([Frame(lease.id, index % 3, index, pcm)])
            outputs = await reader.outputs(lease, index + 1)
        assert [(o.epoch, o.index) for o in outputs] == [(i % 3, i) for i in range(40)]
        for output, pcm in zip(outputs, sent, strict=True):
            assert output.pcm is not None
            assert np.array_equal(output.pcm, pcm)
            assert output.wait_s >= 0
            assert output.timings.rows == 1
        await engine.close(lease)
        await engine.close(lease)
        engine.feed([frame(lease.id)])
        stats = await engine.stats()
        assert (stats.live, stats.frames, stats.steps, stats.stale_frames) == (0, 40, 40, 1)
        assert engine.pid is not None
    assert not engine.ready


async def test_images_cross_with_their_frames() -> None:
    async with started(EngineConfig(model="echo-video", slots=2, threads=1)) as (engine, reader):
        assert engine.spec.video
        lease = await engine.open(PARAMS)
        images = [(), (encoded("blue"), encoded("red")), (), (encoded("green", "png"),)]
        engine.feed([replace(frame(lease.id, at), video=video) for at, video in enumerate(images)])
        outputs = await reader.outputs(lease, len(images))
        assert [o.text for o in outputs] == ["", " I see red.", "", " I see green."]


async def test_startup_outputs_have_no_audio() -> None:
    config = EngineConfig(model="echo", slots=1, max_in_flight=3, delay_frames=1)
    async with started(config) as (engine, reader):
        lease = await engine.open(PARAMS)
        engine.feed([frame(lease.id, 0), frame(lease.id, 1)])
        first, second = await reader.outputs(lease, 2)
        assert first.pcm is None
        assert second.pcm is not None


async def test_refusals() -> None:
    async with started() as (engine, _):
        with pytest.raises(BadParams) as caught:
            await engine.open(OpenParams(voice="x"))
        assert caught.value.field == "voice"
        opened = await asyncio.gather(*(engine.open(PARAMS) for _ in range(2)))
        assert sorted(lease.slot for lease in opened) == [0, 1]
        with pytest.raises(NoFreeSlot):
            await engine.open(PARAMS)
        await engine.close(opened[0])
        assert (await engine.open(PARAMS)).slot == opened[0].slot


async def test_a_surplus_frame_ends_its_lease_and_a_full_ring_is_an_error() -> None:
    async with started() as (engine, reader):
        bad, good = await engine.open(PARAMS), await engine.open(PARAMS)
        engine.feed([frame(bad.id, i) for i in range(5)] + [frame(good.id)])
        (failed,) = await reader.outputs(bad, 1)
        assert "more than 3 frames" in failed.error
        assert (await reader.outputs(good, 1))[0].error == ""
        with pytest.raises(RingFull):
            engine.feed([frame(good.id, i) for i in range(1, 8)])
        engine.feed([frame(good.id, 1), frame(bad.id)])
        assert (await reader.outputs(good, 2))[1].index == 1
        stats = await engine.stats()
        assert (stats.live, stats.stale_frames) == (1, 2)


async def test_two_hundred_sessions_on_two_slots() -> None:
    async with started() as (engine, reader):
        seen: set[int] = set()
        for turn in range(200):
            lease = await engine.open(PARAMS)
            assert lease.id not in seen
            seen.add(lease.id)
            engine.feed([frame(lease.id)])
            if turn % 2:
                await reader.outputs(lease, 1)
            await engine.close(lease)
        stats = await engine.stats()
        assert (stats.live, stats.prefill, stats.queued_frames, stats.restarts) == (0, 0, 0, 0)
        assert stats.free + stats.draining == 2


@pytest.mark.usefixtures("faulty")
async def test_a_text_may_be_longer_than_a_frame() -> None:
    async with started() as (engine, reader):
        one, two = await engine.open(PARAMS), await engine.open(PARAMS)
        engine.feed([frame(one.id), special(two, TALK)])
        (quiet,), (talking,) = await reader.outputs(one, 1), await reader.outputs(two, 1)
        assert quiet.text == ""
        assert talking.text == "wörter " * 40_000


@pytest.mark.usefixtures("faulty")
async def test_a_failed_prefill_fails_its_open_only() -> None:
    async with started() as (engine, reader):
        lease = await engine.open(PARAMS)
        with pytest.raises(EngineError, match="RuntimeError: prefill broke"):
            await engine.open(OpenParams(persona="fail"))
        engine.feed([frame(lease.id)])
        await reader.outputs(lease, 1)
        assert (await engine.open(PARAMS)).slot == 1


@pytest.mark.usefixtures("faulty")
async def test_a_cancelled_open_leaves_nothing() -> None:
    async with started() as (engine, reader):
        lease = await engine.open(PARAMS)
        for _ in range(20):
            opening = asyncio.create_task(engine.open(OpenParams(persona="forever")))
            while (await engine.stats()).prefill != 1:
                pass
            engine.feed([frame(lease.id)])
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        await reader.outputs(lease, 20)
        stats = await engine.stats()
        assert (stats.live, stats.prefill) == (1, 0)
        await engine.open(PARAMS)


@pytest.mark.usefixtures("faulty")
async def test_a_failed_step_loses_the_engine_in_the_models_words() -> None:
    async with started() as (engine, reader):
        lease = await engine.open(PARAMS)
        pending = asyncio.create_task(engine.open(OpenParams(persona="forever")))
        while (await engine.stats()).prefill != 1:
            pass
        engine.feed([special(lease, RAISE)])
        with pytest.raises(EngineLost, match="RuntimeError: the device is gone"):
            await pending
        assert "the device is gone" in str(await reader.loss())
        await until_ready(engine, 1)
        await engine.open(PARAMS)


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("how", [SLEEP, HANG])
async def test_a_step_that_hangs_does_not_hang_stop(
    how: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == HANG:
        monkeypatch.setattr(child, "STOP_S", 0.2)
    async with started() as (engine, _):
        lease = await engine.open(PARAMS)
        engine.feed([special(lease, how)])
        pid = engine.pid
        assert pid is not None
        while not hangs(pid):
            await asyncio.sleep(0.005)
        await engine.stop()
        assert await gone(pid)
    assert_no_children()


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("how", [SLEEP, HANG])
async def test_an_engine_that_hangs_is_started_again(
    how: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "STOP_S", 0.2)
    engine = ChildEngine(CONFIG, backoff=SOON, answer_s=1.0)
    await engine.start()
    async with Reader(engine) as reader:
        lease = await engine.open(PARAMS)
        engine.feed([special(lease, how)])
        with pytest.raises(EngineLost, match="hasn't answered for 1 s"):
            await engine.open(PARAMS)
        assert (await reader.loss()).leases == {lease.id}
        await until_ready(engine, 1)
        again = await engine.open(PARAMS)
        engine.feed([frame(again.id)])
        await reader.outputs(again, 1)
    assert_no_children()


async def test_kill_at_any_moment() -> None:
    """Opens, frames and stats under way end with EngineLost; the next engine works."""
    rng = random.Random(1)
    async with started() as (engine, reader):
        ids: list[int] = []
        for kill in range(1, 6):
            lease = await engine.open(PARAMS)
            ids.append(lease.id)
            pid = engine.pid
            assert pid is not None
            waiting = [asyncio.create_task(engine.stats()) for _ in range(3)]
            for index in range(rng.randrange(4)):
                engine.feed([frame(lease.id, index)])
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            opening = asyncio.create_task(engine.open(PARAMS))
            engine.feed([frame(lease.id, 5)])
            results = await asyncio.gather(*waiting, opening, return_exceptions=True)
            lost = await reader.loss(kill)
            assert "SIGKILL" in str(lost)
            assert isinstance(results[-1], EngineLost | EngineUnavailable | Lease)
            assert all(
                not isinstance(r, BaseException) or isinstance(r, EngineLost) for r in results[:-1]
            )
            await engine.close(lease)
            await until_ready(engine, kill)
            outputs = reader.by_lease[lease.id]
            assert [o.index for o in outputs] == list(range(len(outputs)))
        lease = await engine.open(PARAMS)
        assert lease.id > max(ids)
        engine.feed([frame(lease.id)])
        await reader.outputs(lease, 1)
        stats = await engine.stats()
        assert (stats.restarts, stats.live, len(reader.losses)) == (5, 1, 5)


async def test_while_it_restarts_nothing_can_be_opened() -> None:
    engine = ChildEngine(CONFIG, backoff=Backoff(first_s=60))
    await engine.start()
    async with Reader(engine) as reader:
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await reader.loss()
        assert not engine.ready
        assert engine.spec.slots == 2
        with pytest.raises(EngineUnavailable, match="again"):
            await engine.open(PARAMS)


async def test_a_model_that_cannot_be_loaded_says_why() -> None:
    engine = ChildEngine(EngineConfig(model="echo", step_mode="sideways"), backoff=SOON)
    with pytest.raises(EngineError, match=r"^no step mode 'sideways'"):
        await engine.start()
    assert not engine.ready
    with pytest.raises(EngineUnavailable):
        _ = engine.spec
    await engine.stop()


async def test_a_process_that_cannot_be_started_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(child.sys, "executable", "/no/such/python")
    engine = ChildEngine(CONFIG, backoff=SOON)
    with pytest.raises(EngineError, match=r"can't be started.*/no/such/python"):
        await engine.start()
    await engine.stop()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_start_and_stop_leave_no_descriptor_and_no_process() -> None:
    async def once(*, wait: bool) -> int:
        engine = ChildEngine(CONFIG, backoff=SOON)
        starting = asyncio.create_task(engine.start())
        if wait:
            await starting
            pid = engine.pid
            assert pid is not None
            await asyncio.gather(engine.stop(), engine.stop())
            await engine.stop()
            assert await gone(pid)
        else:
            await asyncio.sleep(0.01)
            await engine.stop()
            with pytest.raises(EngineUnavailable):
                await starting
        return len(os.listdir("/proc/self/fd"))

    await once(wait=True)
    before = await once(wait=False)
    for turn in range(20):
        assert await once(wait=turn % 3 == 0) == before
    assert_no_children()


async def test_a_cancelled_start_leaves_nothing() -> None:
    engine = ChildEngine(CONFIG, backoff=SOON)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert_no_children()
    await engine.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_to_the_group_are_left_to_the_parent(number: signal.Signals) -> None:
    async with started() as (engine, reader):
        pid = engine.pid
        assert pid is not None
        os.kill(pid, number)
        lease = await engine.open(PARAMS)
        engine.feed([frame(lease.id)])
        await reader.outputs(lease, 1)
        assert engine.pid == pid


PARENT = """
import asyncio, os, signal, sys
import numpy as np
from engine.api import EngineConfig, Frame, OpenParams
from engine.child import ChildEngine

async def main():
    engine = ChildEngine(EngineConfig(model="echo", slots=1))
    await engine.start()
    lease = await engine.open(OpenParams())
    if sample := float(sys.argv[1]):
        engine.feed([Frame(lease.id, 0, 0, np.full(1920, sample, np.float32))])
    print(engine.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("sample", [0.0, SLEEP])
async def test_the_child_ends_with_its_parent(sample: float) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(sample)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(FAULTS)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    out, _ = await parent.communicate()
    assert parent.returncode == -signal.SIGKILL
    ended = await gone(int(out))
    if not ended:
        os.kill(int(out), signal.SIGKILL)
    assert ended


def test_the_parent_needs_no_torch() -> None:
    code = "import sys, engine.child; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_works_on_uvloop() -> None:
    async def session() -> None:
        async with started() as (engine, reader):
            lease = await engine.open(PARAMS)
            engine.feed([frame(lease.id)])
            await reader.outputs(lease, 1)
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await reader.loss()
            await until_ready(engine, 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(session())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "feed", "feed", "feed", "close", "cancel", "pause"]),
        st.integers(0, 5),
    ),
    max_size=40,
).map(lambda actions: [("open", 0), *actions])


async def run_schedule(engine: ChildEngine, reader: Reader, actions: list[tuple[str, int]]) -> None:
    live: list[Lease] = []
    fed: dict[int, int] = {}
    ended: list[Lease] = []
    for action, which in actions:
        match action:
            case "open":
                try:
                    live.append(await engine.open(PARAMS))
                except NoFreeSlot:
                    assert len(live) == 2
            case "cancel":
                opening = asyncio.create_task(engine.open(PARAMS))
                for _ in range(which):
                    await asyncio.sleep(0)
                opening.cancel()
                result = (await asyncio.gather(opening, return_exceptions=True))[0]
                if isinstance(result, Lease):
                    await engine.close(result)
                else:
                    assert isinstance(result, asyncio.CancelledError | NoFreeSlot)
            case "close" if live:
                ended.append(live.pop(which % len(live)))
                await engine.close(ended[-1])
            case "feed" if live:
                lease = live[which % len(live)]
                index = fed.get(lease.id, 0)
                if index - len(reader.by_lease[lease.id]) < 3:
                    engine.feed([frame(lease.id, index)])
                    fed[lease.id] = index + 1
            case "pause":
                await asyncio.sleep(0)
    for lease in live:
        count = fed.get(lease.id, 0)
        outputs = await reader.outputs(lease, count)
        assert [o.index for o in outputs] == list(range(count))
        for output in outputs:
            assert output.pcm is not None
            assert np.array_equal(output.pcm, frame(lease.id, output.index).pcm)
        await engine.close(lease)
    for lease in ended:
        outputs = reader.by_lease[lease.id]
        assert [o.index for o in outputs] == list(range(len(outputs)))
        assert len(outputs) <= fed.get(lease.id, 0)
    stats = await engine.stats()
    assert (stats.live, stats.prefill, stats.queued_frames, stats.stale_frames) == (0, 0, 0, 0)


def test_every_frame_gives_exactly_one_output() -> None:
    """Any schedule of sessions on one engine, which comes out of each as it went in."""
    with asyncio.Runner() as runner:
        context = started()
        engine, reader = runner.run(context.__aenter__())

        @settings(max_examples=60, deadline=None)
        @given(ACTIONS)
        def check(actions: list[tuple[str, int]]) -> None:
            runner.run(run_schedule(engine, reader, actions))

        check()
        runner.run(context.__aexit__(None, None, None))
