"""A runtime on a real engine of echo slots, and how tests talk to it."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from duplex.commands import AppendAudio
from duplex.events import OutputAudio
from duplex.runtime import Runtime
from duplex.settings import Settings
from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine
from media.formats import AudioFormat
from media.framing import Framer

FRAME = 1_920
F32 = Settings(input_format=AudioFormat.PCM_F32LE, output_format=AudioFormat.PCM_F32LE)


class LevelVad:
    """Takes any sound for speech: what it hears is decided by the test."""

    def stream(self, sample_rate, on_speech):
        return LevelStream(on_speech)

    def close(self):
        pass


class LevelStream:
    """Windows of 32 ms at 24 kHz."""

    waiting = ()

    def __init__(self, on_speech):
        self.on_speech = on_speech
        self.framer = Framer(768)

    def push(self, pcm):
        self.on_speech([float(np.abs(window).max() > 0.01) for window in self.framer.push(pcm)])

    def close(self):
        pass


@asynccontextmanager
async def running(
    slots=2, delay=0, max_in_flight=8, clock=None, model=EchoModel, vad=None, resume_grace_s=0
):
    engine = InProcessEngine(
        lambda: model(slots, delay), EngineConfig(model="echo", max_in_flight=max_in_flight)
    )
    runtime = Runtime(engine, clock=clock, vad=vad, resume_grace_s=resume_grace_s)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def all_free(runtime):
    """Waits until every slot is free again; hangs, and so fails, if one leaks."""
    async with asyncio.timeout(5):
        while (stats := await runtime.engine.stats()).free < stats.slots:
            await asyncio.sleep(0)
        return stats


async def settled(session):
    """Waits until all that was fed has come back."""
    async with asyncio.timeout(5):
        while session.in_flight:
            await asyncio.sleep(0)


def noise(frames, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, int(frames * FRAME)).astype(np.float32)


def silence(frames):
    return np.zeros(int(frames * FRAME), np.float32)


def append(pcm, **kwargs):
    return AppendAudio(audio=pcm.tobytes(), **kwargs)


async def everything(session):
    """All events of a session until its outbox is closed."""
    found = []
    while (event := await session.outbox.get()) is not None:
        found.append(event)
    return found


async def until(session, kind):
    found = []
    async with asyncio.timeout(10):
        while True:
            event = await session.outbox.get()
            assert event is not None, f"no {kind} in {found}"
            found.append(event)
            if isinstance(event, kind):
                return found


async def waiting(session):
    """The events that wait in the outbox now."""
    return [await session.outbox.get() for _ in range(len(session.outbox))]


def audio_of(found):
    frames = [event.pcm for event in found if isinstance(event, OutputAudio)]
    return np.concatenate(frames) if frames else np.zeros(0, np.float32)


def kinds(found):
    return [type(event) for event in found if not isinstance(event, OutputAudio)]
