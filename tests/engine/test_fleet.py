import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from engine_runs import HANGS_S, Reader, frame, until_ready
from msgspec.structs import replace
from requesting import pipeline, say

from engine.api import (
    BadParams,
    EngineConfig,
    EngineError,
    EngineLost,
    EngineUnavailable,
    NoFreeSlot,
    NotServed,
    OpenParams,
    Overloaded,
    Pcm,
)
from engine.backoff import Backoff
from engine.child import ChildEngine
from engine.echo import EchoModel
from engine.fleet import Fleet, attached_engine, build_engine, listening_engine, shares
from engine.inprocess import InProcessEngine
from engine.model import Room, StepResult
from engine.stages.config import PipelineConfig
from engine.stages.values import TextPiece
from engine.supervisor import Place

PARAMS = OpenParams()
SOON = Backoff(first_s=0.001, longest_s=60.0)
CONFIG = EngineConfig(model="echo", devices=("cpu", "cpu"), slots=4, max_in_flight=3, threads=1)


class SharingEcho(EchoModel):
    """Echo with memory for one session more, or without."""

    enough = True

    def room(self) -> Room:
        return Room(enough=self.enough, pages=8, free_pages=5)


@asynccontextmanager
async def started(
    *models: Callable[[], EchoModel], chat: PipelineConfig | None = None
) -> AsyncIterator[tuple[Fleet, Reader]]:
    def builder(build: Callable[[], EchoModel]) -> Callable[[Place], InProcessEngine]:
        config = EngineConfig(model="echo", max_in_flight=3, chat=chat)
        return lambda place: InProcessEngine(build, config, backoff=SOON, place=place)

    fleet = Fleet({f"cpu:{index}": builder(build) for index, build in enumerate(models)})
    await fleet.start()
    async with Reader(fleet) as reader:
        yield fleet, reader


@asynccontextmanager
async def children() -> AsyncIterator[tuple[Fleet, list[ChildEngine], Reader]]:
    """Two engines of two slots each, in processes."""
    engines: list[ChildEngine] = []

    def builder(config: EngineConfig) -> Callable[[Place], ChildEngine]:
        def build(place: Place) -> ChildEngine:
            engines.append(ChildEngine(config, backoff=SOON, place=place))
            return engines[-1]

        return build

    fleet = Fleet({name: builder(config) for name, config in shares(CONFIG).items()})
    await fleet.start()
    async with Reader(fleet) as reader:
        yield fleet, engines, reader


def kill(engine: ChildEngine) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


async def test_sessions_are_spread_and_each_hears_itself() -> None:
    async with started(lambda: EchoModel(2), lambda: EchoModel(3)) as (fleet, reader):
        spec = fleet.spec
        assert (spec.slots, spec.device, fleet.ready) == (5, "cpu:0, cpu:1", True)
        assert spec.capacity == "5 (cpu:0: 2; cpu:1: 3)"
        leases = [await fleet.open(PARAMS) for _ in range(5)]
        assert len({lease.id for lease in leases}) == 5
        # The emptier one by its share of slots; the first of two that are equally full.
        assert [lease.id % 2 for lease in leases] == [0, 1, 1, 0, 1]
        fleet.feed([frame(lease.id, index) for lease in leases for index in range(2)])
        for lease in leases:
            outputs = await reader.outputs(lease, 2)
            assert [output.index for output in outputs] == [0, 1]
            for output in outputs:
                assert output.pcm is not None
                assert np.array_equal(output.pcm, frame(lease.id, output.index).pcm)
        stats = await fleet.stats()
        assert (stats.slots, stats.free, stats.live, stats.frames) == (5, 0, 5, 10)
        assert [(e.device, e.slots, e.live, e.up) for e in stats.engines] == [
            ("cpu:0", 2, 2, True),
            ("cpu:1", 3, 3, True),
        ]
        assert stats.steps == sum(e.steps for e in stats.engines) > 0
        assert stats.step_seconds == sum(e.step_seconds for e in stats.engines) > 0
        with pytest.raises(NoFreeSlot):
            await fleet.open(PARAMS)
        await fleet.close(leases[3])
        await fleet.close(leases[3])
        assert (await fleet.open(PARAMS)).slot == leases[3].slot


async def test_what_one_engine_refuses_another_takes() -> None:
    class Full(SharingEcho):
        enough = False

    async with started(lambda: Full(9), lambda: SharingEcho(1)) as (fleet, _):
        assert (await fleet.open(PARAMS)).id % 2 == 1
        with pytest.raises(Overloaded, match="5 of 8 pages"):
            await fleet.open(PARAMS)
        with pytest.raises(BadParams):
            await fleet.open(OpenParams(voice="x"))
        stats = await fleet.stats()
        assert (stats.pages, stats.free_pages, stats.free) == (16, 10, 9)


async def test_a_cancelled_open_leaves_nothing() -> None:
    async with started(lambda: EchoModel(1), lambda: EchoModel(1)) as (fleet, _):
        for _ in range(10):
            opening = asyncio.create_task(fleet.open(PARAMS))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        await asyncio.gather(fleet.open(PARAMS), fleet.open(PARAMS))


async def test_a_death_ends_its_own_sessions_only() -> None:
    async with children() as (fleet, engines, reader):
        leases = [await fleet.open(PARAMS) for _ in range(4)]
        lost = [lease for lease in leases if lease.id % 2 == 0]
        kept = [lease for lease in leases if lease.id % 2 == 1]
        assert len(lost) == len(kept) == 2
        kill(engines[0])
        error = await reader.loss()
        assert "the engine on cpu:0 is lost: its process was ended by SIGKILL" in str(error)
        assert error.leases == {lease.id for lease in lost}
        assert fleet.ready
        fleet.feed([frame(lease.id) for lease in leases])
        for lease in kept:
            assert (await reader.outputs(lease, 1))[0].error == ""
        await until_ready(fleet, 1)
        async with asyncio.timeout(HANGS_S):
            while not engines[0].ready:
                await asyncio.sleep(0.005)
        again = [await fleet.open(PARAMS) for _ in range(2)]
        assert all(lease.id % 2 == 0 for lease in again)
        assert {lease.id for lease in again}.isdisjoint(lease.id for lease in leases)
        fleet.feed([frame(lease.id) for lease in (*again, *kept)])
        for lease in again:
            await reader.outputs(lease, 1)
        assert all(reader.by_lease[lease.id] == [] for lease in lost)
        stats = await fleet.stats()
        assert (stats.restarts, stats.live, len(reader.losses)) == (1, 4, 1)


async def test_while_one_is_away_the_others_serve() -> None:
    async with children() as (fleet, engines, reader):
        engines[1]._backoff = Backoff(first_s=60)
        kill(engines[1])
        assert (await reader.loss()).leases == frozenset()
        assert {(await fleet.open(PARAMS)).id % 2 for _ in range(2)} == {0}
        with pytest.raises(NoFreeSlot):
            await fleet.open(PARAMS)
        stats = await fleet.stats()
        assert (stats.slots, stats.free, stats.up) == (2, 0, True)
        assert [(e.device, e.up) for e in stats.engines] == [("cpu:0", True), ("cpu:1", False)]
        assert fleet.spec.slots == 4
        engines[0]._backoff = Backoff(first_s=60)
        kill(engines[0])
        assert len((await reader.loss(2)).leases) == 2
        assert not fleet.ready
        with pytest.raises(EngineUnavailable):
            await fleet.open(PARAMS)
        with pytest.raises(EngineUnavailable):
            await fleet.stats()


async def test_an_open_on_an_engine_that_dies_is_made_on_another() -> None:
    async with children() as (fleet, engines, reader):
        assert engines[0].pid is not None
        os.kill(engines[0].pid, signal.SIGSTOP)
        opening = asyncio.create_task(fleet.open(PARAMS))
        while engines[0].held != 1:
            await asyncio.sleep(0)
        kill(engines[0])
        lease = await opening
        assert lease.id % 2 == 1
        fleet.feed([frame(lease.id)])
        await reader.outputs(lease, 1)


async def test_an_engine_that_does_not_answer_is_told_as_that() -> None:
    async with children() as (fleet, engines, _):
        assert engines[0].pid is not None
        os.kill(engines[0].pid, signal.SIGSTOP)
        stats = await fleet.stats()
        assert [e.up for e in stats.engines] == [False, True]
        assert stats.slots == 2
        os.kill(engines[0].pid, signal.SIGCONT)


async def test_one_that_cannot_start_is_named_and_the_others_are_ended() -> None:
    good = EngineConfig(model="echo")
    fleet = Fleet(
        {
            "cpu:0": lambda place: InProcessEngine(lambda: EchoModel(1), good, place=place),
            "cpu:1": lambda place: ChildEngine(
                EngineConfig(model="echo", step_mode="sideways"), place=place
            ),
        }
    )
    with pytest.raises(EngineError, match=r"^cpu:1: no step mode 'sideways'"):
        await fleet.start()
    await fleet.stop()
    assert [step async for step in fleet.steps()] == []
    with pytest.raises(EngineUnavailable):
        await fleet.open(PARAMS)


async def test_chat_is_with_the_first_engine() -> None:
    told = shares(replace(CONFIG, chat=pipeline()))
    assert [config.chat for config in told.values()] == [pipeline(), None]
    echo = lambda: EchoModel(1)  # noqa: E731
    async with started(echo, echo) as (fleet, _):
        with pytest.raises(NotServed):
            fleet.submit(say("hello you"))
    async with started(echo, echo, chat=pipeline()) as (fleet, _):
        made = [output async for output in fleet.submit(say("hello you"))]
        assert "".join(o.text for o in made if isinstance(o, TextPiece)) == "hello you"
        assert (await fleet.stats()).stages[0].stage == "reply"


async def test_a_frame_at_any_engine_closes_the_gate_of_all() -> None:
    seen: list[bool] = []

    class Watching(EchoModel):
        def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
            seen.append(fleet._engines[0].gate.closed)
            return super().step(rows, pcm)

    async with started(lambda: EchoModel(1), lambda: Watching(1)) as (fleet, reader):
        leases = [await fleet.open(PARAMS) for _ in range(2)]
        fleet.feed([frame(leases[1].id, 0)])
        await reader.outputs(leases[1], 1)
        assert seen == [True]


def test_slots_and_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = shares(EngineConfig(model="echo", devices=("cpu", "cpu", "cuda:1"), slots=5))
    assert list(found) == ["cpu:0", "cpu:1", "cuda:1"]
    assert [config.slots for config in found.values()] == [2, 2, 1]
    assert [config.device for config in found.values()] == ["cpu", "cpu", "cuda:1"]
    assert all(config.devices == () for config in found.values())
    assert all(config.threads == max(1, (os.cpu_count() or 1) // 3) for config in found.values())
    auto = shares(EngineConfig(model="echo", devices=("cuda:0", "cuda:3"), slots="auto"))
    assert [config.slots for config in auto.values()] == ["auto", "auto"]
    assert [config.threads for config in auto.values()] == [None, None]


@pytest.mark.parametrize(
    ("devices", "slots", "said"),
    [
        (("cpu", "tpu"), None, "no device 'tpu'"),
        (("cuda:1", "cuda:1"), None, "cuda:1 can't be one of several, or twice"),
        (("cpu", "auto"), None, "auto can't be one of several"),
        (("cpu", "cpu"), 1, "1 slots can't be spread over 2 devices"),
    ],
)
def test_what_cannot_be_shared_out(devices: tuple[str, ...], slots: int | None, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        build_engine(EngineConfig(model="echo", devices=devices, slots=slots))


def test_without_a_list_of_devices_there_is_one_engine() -> None:
    assert isinstance(build_engine(EngineConfig(model="echo")), ChildEngine)
    assert isinstance(build_engine(CONFIG), Fleet)


async def test_other_processes_use_it_too(tmp_path: Path) -> None:
    with listening_engine(CONFIG, tmp_path) as starter:
        await starter.start()
        async with Reader(starter) as ours:
            other = attached_engine(CONFIG, tmp_path)
            await other.start()
            assert (other.spec.slots, other.spec.device) == (4, "cpu:0, cpu:1")
            async with Reader(other) as theirs:
                leases = [await other.open(PARAMS) for _ in range(3)]
                assert (await starter.stats()).live == 3
                mine = await starter.open(PARAMS)
                with pytest.raises(NoFreeSlot):
                    await starter.open(PARAMS)
                other.feed([frame(lease.id) for lease in leases])
                starter.feed([frame(mine.id)])
                for lease in leases:
                    await theirs.outputs(lease, 1)
                await ours.outputs(mine, 1)


async def test_losses_of_several_engines_are_told_apart_or_together() -> None:
    async with children() as (fleet, engines, reader):
        leases = {(await fleet.open(PARAMS)).id for _ in range(4)}
        kill(engines[0])
        kill(engines[1])
        told: set[int] = set()
        async with asyncio.timeout(HANGS_S):
            while told != leases:
                await asyncio.sleep(0.005)
                told = set[int]().union(*(loss.leases for loss in reader.losses))
        assert all(isinstance(loss, EngineLost) for loss in reader.losses)
