import asyncio

import pytest
import uvloop

from media.clock import SystemClock, VirtualClock, settle


def test_system_clock_never_wakes_early_even_on_uvloop():
    clock = SystemClock()

    async def early() -> list[float]:
        left = []
        for i in range(40):
            deadline = clock.now() + 0.001 + i * 0.00013
            await clock.sleep_until(deadline)
            left.append(deadline - clock.now())
        await clock.sleep_until(clock.now() - 1)
        return left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert max(runner.run(early())) <= 0


async def test_advance_wakes_in_order_and_at_the_deadline():
    clock = VirtualClock(100.0)
    seen = []

    async def sleeper(name, deadline, step):
        while deadline <= 104:
            await clock.sleep_until(deadline)
            seen.append((name, clock.now()))
            deadline += step

    tasks = [
        asyncio.create_task(sleeper("a", 101.0, 2.0)),
        asyncio.create_task(sleeper("b", 101.0, 1.0)),
    ]
    await clock.advance(0.5)
    assert seen == []
    await clock.advance(2.5)
    assert seen == [("a", 101.0), ("b", 101.0), ("b", 102.0), ("a", 103.0), ("b", 103.0)]
    assert clock.now() == 103.0
    await clock.advance(10)
    assert all(task.done() for task in tasks)
    assert clock.now() == 113.0


async def test_a_woken_task_finishes_its_work_before_time_goes_on():
    clock = VirtualClock()
    queue: asyncio.Queue[float] = asyncio.Queue()
    seen = []

    async def worker():
        while True:
            sent = await queue.get()
            for _ in range(100):
                await asyncio.sleep(0)
            seen.append((sent, clock.now()))

    async def pacer():
        for k in range(3):
            await clock.sleep_until(k * 0.08)
            queue.put_nowait(clock.now())
        await clock.sleep_until(1.0)
        return "done"

    task = asyncio.create_task(worker())
    assert await clock.run(pacer()) == "done"
    assert seen == [(0.0, 0.0), (0.08, 0.08), (0.16, 0.16)]
    assert clock.now() == 1.0
    task.cancel()


async def test_run_tells_a_deadlock():
    clock = VirtualClock()
    with pytest.raises(RuntimeError, match="everything waits"):
        await clock.run(asyncio.Event().wait())


async def test_run_passes_exceptions_on():
    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await VirtualClock().run(fails())


async def test_a_cancelled_sleeper_is_forgotten():
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep_until(1.0))
    await settle()
    task.cancel()
    await settle()
    assert await clock.run(clock.sleep_until(2.0)) is None
    assert clock.now() == 2.0


async def test_a_passed_deadline_returns_at_once():
    clock = VirtualClock(5.0)
    await clock.sleep_until(5.0)
    assert clock.now() == 5.0
