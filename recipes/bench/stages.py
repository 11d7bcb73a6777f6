"""What chat costs the conversations: frame latency with and without stage load, in one run.

    python -m recipes.bench.stages --model echo --sessions 8 --seconds 10 --step-ms 5

Sessions feed a frame every 80 ms, their phases spread, through a child engine. The load is
`--requests` chat requests at a time to an echo stage of known cost, `--step-ms` a piece on
`--device`, or with `--vllm DIR` to vLLM with that model's shape and random weights; each is
submitted anew as it ends. Prints the latency from feed to output, and the pieces a second that the
stage made meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import numpy as np
import uvloop

from engine.api import EngineConfig, EngineUnavailable, Frame, Lease, OpenParams, Request
from engine.child import ChildEngine
from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.values import ChatMessage, ChatRequest, TextPiece

REQUEST = ChatRequest(
    messages=(ChatMessage(role="user", content="word " * 200),), max_tokens=200, ignore_eos=True
)
TURNS = 6
"""With and without load, in turns: whatever else the machine does troubles both."""
_LOOK_S = 0.5


async def converse(
    engine: ChildEngine, leases: list[Lease], first: int, seconds: float
) -> tuple[list[float], int]:
    """Paced frames of all sessions; the latencies in ms, and the next index."""
    spec = engine.spec
    rounds = int(seconds / spec.frame_s)
    sound = np.random.default_rng(0).uniform(-0.1, 0.1, spec.frame_size).astype(np.float32)
    fed: dict[tuple[int, int], float] = {}
    trips: list[float] = []

    async def read() -> None:
        async for outputs in engine.steps():
            now = time.monotonic()
            trips.extend(1000 * (now - fed.pop((o.lease, o.index))) for o in outputs)
            if len(trips) == rounds * len(leases):
                return

    reader = asyncio.create_task(read())
    start = time.monotonic()
    for index in range(rounds):
        for place, lease in enumerate(leases):
            due = start + (index + place / len(leases)) * spec.frame_s
            await asyncio.sleep(due - time.monotonic())
            fed[lease.id, first + index] = time.monotonic()
            engine.feed([Frame(lease.id, 0, first + index, sound)])
    await reader
    return trips, first + rounds


async def load(engine: ChildEngine, made: list[int]) -> None:
    """One chat request after another."""
    while True:
        stream = await submit(engine)
        try:
            async for output in stream:
                made[0] += isinstance(output, TextPiece)
        finally:
            stream.abort()


async def submit(engine: ChildEngine) -> Request:
    """A request, as soon as its stage has loaded."""
    while True:
        try:
            return engine.submit(REQUEST)
        except EngineUnavailable:
            await asyncio.sleep(_LOOK_S)


def stage_of(told: argparse.Namespace) -> StageConfig:
    """What answers the requests."""
    if told.vllm is None:
        options: dict[str, object] = {"step_ms": told.step_ms, "device": told.device}
        return StageConfig(kind="echo", final=True, options=options)
    args: dict[str, object] = {"load_format": "dummy", "max_model_len": 2048}
    if told.device == "cpu":
        args |= {"enforce_eager": True, "dtype": "float32"}
    options = {"model": told.vllm, "memory": told.memory, "engine_args": args}
    return StageConfig(kind="vllm", final=True, options=options)


async def measure(told: argparse.Namespace) -> dict[str, float]:
    stage = stage_of(told)
    config = EngineConfig(
        model=told.model,
        slots=told.sessions,
        device=told.device,
        threads=1,
        chat=PipelineConfig(model="load", stages={"reply": stage}),
    )
    engine = ChildEngine(config)
    await engine.start()
    leases = [await engine.open(OpenParams()) for _ in range(told.sessions)]
    _, index = await converse(engine, leases, 0, 1.0)  # warm
    async for _ in await submit(engine):
        pass  # its first request is slow
    alone: list[float] = []
    beside: list[float] = []
    made, turn_s = [0], told.seconds / TURNS
    for _ in range(TURNS):
        trips, index = await converse(engine, leases, index, turn_s)
        alone += trips
        tasks = [asyncio.create_task(load(engine, made)) for _ in range(told.requests)]
        trips, index = await converse(engine, leases, index, turn_s)
        beside += trips
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await engine.stop()
    found: dict[str, float] = {"frames": len(alone), "pieces_per_s": made[0] / told.seconds}
    for name, trips in (("alone", alone), ("beside", beside)):
        for share in (50, 99):
            found[f"{name}_p{share}_ms"] = float(np.percentile(trips, share))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="echo")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--vllm", metavar="DIR")
    parser.add_argument("--memory", type=float, default=0.1, help="vLLM's share of the device's")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(told))
    if told.json:
        print(json.dumps(found))
        return
    print(f"{told.model}, {told.sessions} sessions, {found['frames']:.0f} frames each way")
    for name in ("alone", "beside"):
        print(
            f"{name:7} p50 {found[f'{name}_p50_ms']:7.2f} ms, p99 {found[f'{name}_p99_ms']:7.2f} ms"
        )
    what = f"of {told.step_ms:g} ms" if told.vllm is None else "of vLLM's"
    print(f"load    {found['pieces_per_s']:.0f} pieces {what} a second")


if __name__ == "__main__":
    main()
