"""Plays a recording to a server, as a caller would, and keeps what it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from clients.errors import ClientError, ConnectionLost
from clients.events import AudioFrame, ResponseCreated, ServerError, Text
from clients.latency import FrameTimes, Percentiles, percentiles
from clients.options import SessionOptions, input_rate, output_rate
from clients.session import RealtimeSession, open_session
from media.clock import SystemClock
from media.files import WavWriter, read_audio
from media.formats import AudioFormat, Pcm
from media.wav import Subtype

MAX_ERRORS = 20
"""So many of a server's errors are kept."""

Progress = Callable[[int, int, int], None]
"""Called with frames sent, frames received and frames in all."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a replay. A frame is 80 ms of a usual model."""

    input: str
    output: str | None
    session_id: str
    frame_ms: float
    sample_rate: int
    """Of the output, in Hz."""
    frames_in: int
    frames_out: int
    deficit: int
    """Frames in that gave none out: the model's start-up, and what was lost."""
    lost: int
    """Frames missing between others; silence stands for them in the output."""
    first_audio_ms: float | None
    """From the first frame sent to the first received."""
    latency: Percentiles | None
    """From a frame's last sample sent to the frame it gave received."""
    duration_s: float
    transcript: str
    response_ids: tuple[str, ...]
    errors: tuple[ServerError, ...]
    closed: str
    """The server's reason for the session's end."""


async def replay(
    input: str | Path,
    output: str | Path | None,
    options: SessionOptions,
    *,
    pacing: bool = True,
    tail_s: float = 0.0,
    stall_s: float = 30.0,
    on_progress: Progress | None = None,
) -> ReplayResult:
    """Sends an audio file frame by frame in real time, then closes and waits for the rest.

    The output is written as it comes, sample for sample: a float WAV for `pcm_f32le`, else a
    16-bit one. `pacing=False` sends as fast as the server takes it; `tail_s` seconds of silence
    follow the recording. Raises AudioFileError, what `open_session` raises, ConnectionLost, or
    ClientError if nothing comes for `stall_s` seconds.
    """
    pcm = await asyncio.to_thread(read_audio, input, input_rate(options))
    pcm = np.concatenate([pcm, np.zeros(round(tail_s * input_rate(options)), np.float32)])
    started = time.monotonic()
    session = await open_session(options)
    try:
        run = _Run(session, pcm, pacing=pacing, on_progress=on_progress)
        await run.play(output, options.output_format, stall_s)
    finally:
        await session.close(stall_s)
    times = run.times
    first = times.first_audio_s
    return ReplayResult(
        input=str(input),
        output=str(output) if output is not None else None,
        session_id=session.id,
        frame_ms=1000 * session.frame_s,
        sample_rate=output_rate(options.output_format),
        frames_in=len(times.sent),
        frames_out=len(times.received),
        deficit=times.deficit,
        lost=times.lost(times.startup),
        first_audio_ms=round(1000 * first, 3) if first is not None else None,
        latency=percentiles(times.latencies_s()),
        duration_s=round(time.monotonic() - started, 3),
        transcript="".join(run.text).strip(),
        response_ids=tuple(run.response_ids),
        errors=tuple(run.errors),
        closed=session.closed.reason if session.closed else "",
    )


_AHEAD = 50
"""Frames that an unpaced replay sends ahead of their answers: a socket stuffed with more would
answer no ping until the model has caught up.
"""


class _Run:
    def __init__(
        self, session: RealtimeSession, pcm: Pcm, *, pacing: bool, on_progress: Progress | None
    ) -> None:
        self.times = FrameTimes()
        self.text: list[str] = []
        self.response_ids: list[str] = []
        self.errors: list[ServerError] = []
        self._session = session
        self._chunks = [
            pcm[i : i + session.frame_size] for i in range(0, len(pcm), session.frame_size)
        ]
        self._pacing = pacing
        self._answered = 0
        self._answer = asyncio.Event()
        self._on_progress = on_progress

    async def play(self, output: str | Path | None, format: AudioFormat, stall_s: float) -> None:
        """Sends and receives at once, until the session is closed."""
        writer = None
        if output is not None:
            subtype = Subtype.FLOAT if format is AudioFormat.PCM_F32LE else Subtype.PCM16
            writer = WavWriter(output, output_rate(format), subtype)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send())
                tasks.create_task(self._receive(writer, stall_s))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            if writer is not None:
                writer.close()

    async def _send(self) -> None:
        with suppress(ConnectionLost):  # the receiver learns how the session ended
            await self._send_all()

    async def _send_all(self) -> None:
        session, clock = self._session, SystemClock()
        start = clock.now()
        for k, chunk in enumerate(self._chunks):
            if self._pacing:
                await clock.sleep_until(start + k * session.frame_s)
            while not self._pacing and k - self._answered >= _AHEAD:
                self._answer.clear()
                await self._answer.wait()
            self.times.sent.append(clock.now())
            await session.send_audio(chunk)
            self._progress()
        await session.end_input()

    async def _receive(self, writer: WavWriter | None, stall_s: float) -> None:
        loop = asyncio.get_running_loop()
        expected = 0
        try:
            async with asyncio.timeout(stall_s) as stall:
                async for event in self._session:
                    stall.reschedule(loop.time() + stall_s)
                    match event:
                        case AudioFrame():
                            self.times.received.append((event.index, event.received_at))
                            if writer is not None:
                                missing = (event.index - expected) * len(event.pcm)
                                writer.write(np.zeros(missing, np.float32))
                                writer.write(event.pcm)
                            expected = self._answered = event.index + 1
                            self._answer.set()
                            self._progress()
                        case Text():
                            self.text.append(event.text)
                        case ResponseCreated():
                            self.response_ids.append(event.response_id)
                        case ServerError() if len(self.errors) < MAX_ERRORS:
                            self.errors.append(event)
        except TimeoutError:
            raise ClientError(f"nothing came from the server for {stall_s:g} s") from None

    def _progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self.times.sent), len(self.times.received), len(self._chunks))
