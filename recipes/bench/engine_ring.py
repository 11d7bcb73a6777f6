"""What a frame costs on its way through a child engine: echo sessions, parent and child apart.

    python -m recipes.bench.engine_ring --sessions 200 --seconds 10

Each session feeds a frame every 80 ms; the sessions' phases fall into `--wakeups` batches. Prints
CPU microseconds a frame of the parent (feed and steps, without the timers that drive them) and of
the child, both also as multiples of two plain copies of the frame, into a ring and out of it; and
the round trip.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable

import numpy as np
import psutil
import uvloop

from engine.api import EngineConfig, Frame, OpenParams
from engine.child import ChildEngine


def copy_us(sessions: int, frame_size: int, max_in_flight: int) -> float:
    """Microseconds to copy a frame into a buffer as large as the ring and out again."""
    frames = np.random.default_rng(0).standard_normal((sessions, frame_size)).astype(np.float32)
    ring = np.zeros((sessions * max_in_flight, frame_size), np.float32)
    out = np.empty(frame_size, np.float32)
    rounds = 10_000
    start = time.process_time()
    for at in range(rounds):
        np.copyto(ring[at % len(ring)], frames[at % sessions])
        np.copyto(out, ring[at % len(ring)])
    return (time.process_time() - start) / rounds * 1e6


async def pace(rounds: int, wakeups: int, frame_s: float, turn: Callable[[int, int], None]) -> None:
    """Calls `turn(index, group)` `wakeups` times in each frame's time."""
    start = time.monotonic()
    for index in range(rounds):
        for group in range(wakeups):
            due = start + (index + group / wakeups) * frame_s
            await asyncio.sleep(due - time.monotonic())
            turn(index, group)


async def drive(sessions: int, seconds: float, wakeups: int) -> dict[str, float]:
    """Runs the load; returns the figures."""
    engine = ChildEngine(EngineConfig(model="echo", slots=sessions, threads=1))
    await engine.start()
    leases = [await engine.open(OpenParams()) for _ in range(sessions)]
    groups = [leases[at::wakeups] for at in range(wakeups)]
    spec = engine.spec
    rounds = int(seconds / spec.frame_s)
    frames = rounds * sessions
    sound = np.random.default_rng(0).standard_normal(spec.frame_size).astype(np.float32)
    fed_at: dict[tuple[int, int], float] = {}
    trips: list[float] = []
    got = steps = 0

    async def read() -> None:
        nonlocal got, steps
        async for outputs in engine.steps():
            now = time.monotonic()
            steps += 1
            got += len(outputs)
            trips.extend(now - fed_at.pop((output.lease, output.index)) for output in outputs)
            if got == frames:
                return

    def feed(index: int, group: int) -> None:
        now = time.monotonic()
        fed_at.update({(lease.id, index): now for lease in groups[group]})
        engine.feed([Frame(lease.id, 0, index, sound) for lease in groups[group]])

    assert engine.pid is not None
    child = psutil.Process(engine.pid)
    timers = time.process_time()
    await pace(rounds, wakeups, spec.frame_s, lambda index, group: None)
    timers = time.process_time() - timers
    reader = asyncio.create_task(read())
    before, parent = child.cpu_times(), time.process_time()
    await pace(rounds, wakeups, spec.frame_s, feed)
    await reader
    parent = time.process_time() - parent
    after = child.cpu_times()
    await engine.stop()
    p50, p99 = np.percentile(np.array(trips) * 1e3, [50, 99])
    return {
        "frames": frames,
        "rows_per_step": frames / steps,
        "parent_us": (parent - timers) / frames * 1e6,
        "timers_us": timers / frames * 1e6,
        "child_us": (after.user + after.system - before.user - before.system) / frames * 1e6,
        "copies_us": copy_us(sessions, spec.frame_size, spec.max_in_flight),
        "trip_p50_ms": float(p50),
        "trip_p99_ms": float(p99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--wakeups", type=int, default=80, help="batches in 80 ms")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(drive(told.sessions, told.seconds, told.wakeups))
    if told.json:
        print(json.dumps(found))
        return
    copies = found["copies_us"]
    print(
        f"{told.sessions} sessions, {found['frames']:.0f} frames, "
        f"{found['rows_per_step']:.1f} rows a step\n"
        f"parent {found['parent_us']:6.2f} us a frame, {found['parent_us'] / copies:.1f} x copies\n"
        f"child  {found['child_us']:6.2f} us a frame, {found['child_us'] / copies:.1f} x copies\n"
        f"copies {copies:6.2f} us (a frame into a ring and out of it)\n"
        f"round trip p50 {found['trip_p50_ms']:.2f} ms, p99 {found['trip_p99_ms']:.2f} ms"
    )


if __name__ == "__main__":
    main()
