"""Several owners of one engine's process: each with leases, rings and a socket of its own."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from engine_runs import HANGS_S, Reader, frame, until_ready
from msgspec.structs import replace

from engine.api import EngineConfig, Frame, NoFreeSlot, OpenParams
from engine.attached import AttachedEngine
from engine.backoff import Backoff
from engine.channel import Loaded, pack, up
from engine.child import ChildEngine
from engine.core import EngineCore
from engine.echo import FRAME_SIZE, EchoModel
from engine.messages import GetStats, SlotsChanged
from engine.owners import MAX_UNSENT, Owners
from engine.port import OwnerPort
from engine.shm import create_memory

FAULTS = Path(__file__).parent / "faults"
TALK = -3.0
PARAMS = OpenParams()
CONFIG = EngineConfig(model="echo", slots=3, max_in_flight=3, threads=1)
SOON = Backoff(first_s=0.001, longest_s=60.0)

House = tuple[ChildEngine, list[tuple[AttachedEngine, Reader]], str]


@asynccontextmanager
async def house(folder: Path, attached: int = 2) -> AsyncIterator[House]:
    """An engine, its starter, and so many others who use it."""
    path = str(folder / "engine")
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        starter = ChildEngine(CONFIG, listener=listener, backoff=SOON)
        others = []
        for _ in range(attached):
            engine = AttachedEngine(path, backoff=SOON)
            reader = await stack.enter_async_context(Reader(engine))
            others.append((engine, reader))
        # Who comes before the model is there waits for it.
        starting = [asyncio.create_task(engine.start()) for engine, _ in others]
        await starter.start()
        await stack.enter_async_context(Reader(starter))
        await asyncio.gather(*starting)
        yield starter, others, path


async def until_free(engine: ChildEngine, count: int) -> None:
    async with asyncio.timeout(HANGS_S):
        while (await engine.stats()).free != count:
            await asyncio.sleep(0.005)


async def test_sessions_of_different_owners_share_the_engine_and_not_their_sound(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as (starter, ((one, heard_by_one), (two, heard_by_two)), _):
        assert one.spec == two.spec == starter.spec
        first, second = await one.open(PARAMS), await two.open(PARAMS)
        assert first.id == second.id == 0  # each counts for itself
        assert first.slot != second.slot
        rng = np.random.default_rng(0)
        said = rng.standard_normal((2, 30, FRAME_SIZE)).astype(np.float32)
        for index in range(30):
            one.feed([Frame(first.id, 0, index, said[0, index])])
            two.feed([Frame(second.id, 7, index, said[1, index])])
            await heard_by_one.outputs(first, index + 1)
            await heard_by_two.outputs(second, index + 1)
        for reader, epoch, pcm in ((heard_by_one, 0, said[0]), (heard_by_two, 7, said[1])):
            outputs = reader.by_lease[0]
            assert [(o.epoch, o.index) for o in outputs] == [(epoch, i) for i in range(30)]
            assert all(np.array_equal(o.pcm, p) for o, p in zip(outputs, pcm, strict=True))
        await one.open(PARAMS)
        with pytest.raises(NoFreeSlot):
            await two.open(PARAMS)
        await one.close(first)
        assert (await two.open(PARAMS)).slot == first.slot
        # What one of them counts the others see: the slots are the engine's.
        assert (await one.stats()).live == (await two.stats()).live == 3


async def test_an_owner_that_goes_frees_its_slots_and_nobody_else_notices(tmp_path: Path) -> None:
    async with house(tmp_path) as (starter, ((one, _), (two, heard_by_two)), path):
        for _ in range(2):
            await one.open(PARAMS)
        staying = await two.open(PARAMS)
        for turn in range(5):
            two.feed([frame(staying.id, turn)])
            await heard_by_two.outputs(staying, turn + 1)
            if turn == 1:
                await one.stop()
        await until_free(starter, 2)
        successor = AttachedEngine(path, backoff=SOON)
        async with Reader(successor) as reader:
            await successor.start()
            for lease in [await successor.open(PARAMS), await successor.open(PARAMS)]:
                successor.feed([frame(lease.id)])
                assert len(await reader.outputs(lease, 1)) == 1
        assert not heard_by_two.losses


def test_every_owner_hears_how_many_sessions_are_taken_and_so_does_who_comes_later(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "engine")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        first, theirs = map(stack.enter_context, socket.socketpair())
        memory = [create_memory() for _ in range(2)]
        for descriptor in memory:
            stack.callback(os.close, descriptor)
        spec = EngineCore(EchoModel(3)).spec
        owners = Owners(listener, theirs, (memory[0], memory[1]), spec)

        def attached() -> socket.socket:
            channel = stack.enter_context(socket.socket(socket.AF_UNIX))
            channel.connect(path)
            owners.receive(wait_s=HANGS_S)
            socket.send_fds(channel, [b" "], memory)
            owners.receive(wait_s=HANGS_S)
            return channel

        def said(channel: socket.socket) -> list[object]:
            return [*up().push(channel.recv(1 << 16))]

        second = attached()
        assert said(second) == [Loaded(spec)]
        change = SlotsChanged(2, "2 sessions: why")
        owners.send(change)
        assert said(first) == said(second) == [change]
        now = replace(spec, slots=2, capacity="2 sessions: why")
        third = attached()
        assert said(third) == [Loaded(now)]
        for channel in (second, third):
            channel.close()
            owners.receive(wait_s=HANGS_S)  # closes its end


async def test_a_number_that_changes_while_an_owner_comes_is_the_one_it_knows(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "engine")
    before = EngineCore(EchoModel(3)).spec
    changes = [SlotsChanged(slots, f"{slots} sessions: why") for slots in (1, 2)]

    def let_in(listener: socket.socket) -> None:
        channel, _ = listener.accept()
        with channel:
            _, memory, _, _ = socket.recv_fds(channel, 1, 2)
            port = OwnerPort(channel, (memory[0], memory[1]), before)
            for descriptor in memory:
                os.close(descriptor)
            channel.sendall(b"".join(map(pack, (Loaded(before), *changes))))
            while port.receive(wait_s=None) is not None:
                pass
            port.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        letting_in = asyncio.create_task(asyncio.to_thread(let_in, listener))
        async with Reader(AttachedEngine(path, backoff=SOON)) as reader:
            await reader.engine.start()
            spec = reader.engine.spec
        assert (spec.slots, spec.capacity) == (2, "2 sessions: why")
        await letting_in


async def test_an_owner_that_does_not_read_is_given_up_and_holds_up_nobody(tmp_path: Path) -> None:
    async with house(tmp_path, attached=1) as (starter, ((one, reader),), path):
        lease = await one.open(PARAMS)
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(path)
        memory = [create_memory(), create_memory()]
        socket.send_fds(deaf, [b"\0"], memory)
        for descriptor in memory:
            os.close(descriptor)
        question = pack(GetStats(0)) * 1000
        deaf.settimeout(HANGS_S)
        with pytest.raises(ConnectionError):
            deaf.sendall(question * (20 * MAX_UNSENT // len(question)))
        deaf.close()
        one.feed([frame(lease.id)])
        await reader.outputs(lease, 1)
        assert (await starter.stats()).live == 1


async def test_a_stranger_on_the_socket_does_no_harm(tmp_path: Path) -> None:
    async with house(tmp_path, attached=1) as (_, ((one, reader),), path):
        lease = await one.open(PARAMS)
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as empty:
            silent.connect(path)
            empty.connect(path)
            empty.sendall(b"\0")
            assert empty.recv(1) == b""
            one.feed([frame(lease.id)])
            await reader.outputs(lease, 1)


async def test_long_texts_arrive_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a socket holds: the rest goes when there is room."""
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    async with house(tmp_path) as (_, ((one, heard_by_one), (two, heard_by_two)), _):
        talking, quiet = await one.open(PARAMS), await two.open(PARAMS)
        one.feed([Frame(talking.id, 0, 0, np.full(FRAME_SIZE, TALK, np.float32))])
        two.feed([frame(quiet.id)])
        assert (await heard_by_one.outputs(talking, 1))[0].text == "wörter " * 40_000
        assert (await heard_by_two.outputs(quiet, 1))[0].text == ""


async def test_all_owners_find_the_next_engine(tmp_path: Path) -> None:
    async with house(tmp_path) as (starter, others, _):
        leases = [await engine.open(PARAMS) for engine, _ in others]
        pid = starter.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for engine, reader in others:
            await reader.loss()
            await until_ready(engine, 1)
        for (engine, reader), lease in zip(others, leases, strict=True):
            again = await engine.open(PARAMS)
            assert again.id > lease.id
            engine.feed([frame(again.id), frame(lease.id)])
            await reader.outputs(again, 1)
            assert not reader.by_lease[lease.id]
