"""Recordings through the engine without a server: ordinary sessions, as fast as the slots go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from duplex.commands import AppendPcm, CloseSession
from duplex.errors import SessionError
from duplex.events import Failed, OutputAudio, OutputText
from duplex.ids import new_id
from duplex.runtime import Runtime
from duplex.session import Session
from duplex.settings import Settings
from engine.api import OpenParams, Pcm
from media.formats import AudioFormat


class OfflineError(Exception):
    """A recording couldn't be run. `code` and `param` are those of the session's error."""

    def __init__(self, error: SessionError) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.param = error.param


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """What a recording gave."""

    pcm: Pcm
    """[samples] at the engine's rate: the agent's whole frames, one after another."""
    text: str
    frames_in: int
    frames_out: int
    step_s: list[float]
    """Duration of the step of each frame out, seconds."""


def settings_of(params: OpenParams) -> Settings:
    """Session settings that open a slot with these parameters."""
    return Settings(
        **msgspec.structs.asdict(params),
        output_format=AudioFormat.PCM_F32LE,
        stage_metrics=True,
    )


async def run_offline(
    runtime: Runtime,
    pcm: Pcm,
    settings: Settings,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OfflineResult:
    """Runs a recording [samples] at the engine's rate through a session of its own.

    The last frame is padded with zeros. `progress` is called with the frames out and in. Raises
    OfflineError.
    """
    spec = runtime.spec
    total = -(-len(pcm) // spec.frame_size)
    session = runtime.create_session(new_id("sess"), settings)
    listener = asyncio.create_task(_listen(session, lambda done: progress(done, total)))
    try:
        for start in range(0, len(pcm), spec.frame_size):
            chunk = pcm[start : start + spec.frame_size]
            await session.handle(AppendPcm(pcm=chunk, rate=spec.sample_rate))
            if listener.done():
                break  # the session has failed
        await session.handle(CloseSession())
        heard = await listener
    finally:
        await session.close("client_close")
        await listener
    if heard.error is not None:
        raise OfflineError(heard.error)
    return OfflineResult(
        pcm=np.concatenate(heard.audio) if heard.audio else np.zeros(0, np.float32),
        text="".join(heard.text),
        frames_in=total,
        frames_out=len(heard.audio),
        step_s=heard.step_s,
    )


@dataclass(slots=True)
class _Heard:
    audio: list[Pcm] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    error: SessionError | None = None


async def _listen(session: Session, progress: Callable[[int], None]) -> _Heard:
    heard = _Heard()
    while (event := await session.outbox.get()) is not None:
        match event:
            case OutputAudio():
                heard.audio.append(event.pcm)
                if event.timings is not None:
                    heard.step_s.append(event.timings.step_s)
                progress(len(heard.audio))
            case OutputText():
                heard.text.append(event.text)
            case Failed():
                heard.error = event.error
    return heard
