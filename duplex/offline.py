"""A recording through the engine without a server: the same frames, slots and steps, unpaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.api import Engine, Frame, OpenParams, Pcm
from media.framing import Framer


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """What a recording gave."""

    pcm: Pcm
    """[samples] at the engine's rate: the agent's whole frames, one after another."""
    text: str
    frames_in: int
    frames_out: int
    step_s: list[float]
    """Duration of each step, seconds."""


async def run_offline(
    engine: Engine,
    pcm: Pcm,
    params: OpenParams,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OfflineResult:
    """Runs a recording [samples] at the engine's rate through one slot of a started engine.

    The last frame is padded with zeros. `progress` is called with the frames done and in all.
    Raises engine.api.EngineError.
    """
    spec = engine.spec
    framer = Framer(spec.frame_size)
    frames = framer.push(pcm)
    tail = framer.flush()
    if tail is not None:
        frames.append(tail)
    lease = await engine.open(params)
    audio: list[Pcm] = []
    text: list[str] = []
    step_s: list[float] = []
    try:
        fed = done = 0
        steps = engine.steps()
        while done < len(frames):
            batch = range(fed, min(len(frames), done + spec.max_in_flight))
            engine.feed([Frame(lease.id, 0, index, frames[index]) for index in batch])
            fed = max(fed, batch.stop)
            for output in await anext(steps):
                done += 1
                text.append(output.text)
                step_s.append(output.timings.step_s)
                if output.pcm is not None:
                    audio.append(output.pcm)
            progress(done, len(frames))
    finally:
        await engine.close(lease)
    return OfflineResult(
        pcm=np.concatenate(audio) if audio else np.zeros(0, np.float32),
        text="".join(text),
        frames_in=len(frames),
        frames_out=len(audio),
        step_s=step_s,
    )
