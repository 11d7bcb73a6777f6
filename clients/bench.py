"""Load: many callers at once, in real time, in one process.

What is sent is encoded beforehand and of what comes only the frame's number is read, so that the
load costs little beside the server. Run it on uvloop.
"""

from __future__ import annotations

import asyncio
import time
from itertools import cycle, islice

import msgspec
import numpy as np

from clients.cpu import ServerCpu, server_pid
from clients.errors import BadEvent, ConnectionLost
from clients.latency import FrameTimes, Percentiles, percentiles
from clients.options import SessionOptions, append_message
from clients.session import RealtimeSession, open_session
from media.clock import SystemClock

_OPENING = 16
"""Sessions that are opened at a time."""

_PAYLOADS = 16
"""Different frames that are sent, in turn."""

_DRAIN_S = 15.0


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a server did under load."""

    sessions: int
    seconds: float
    frames_in: int
    frames_out: int
    lost: int
    """Frames that never came, beyond the model's start-up."""
    misses: int
    """Frames later than a frame is long."""
    latency: Percentiles | None
    """From a frame's last sample sent to the frame it gave received."""
    errors: int
    """Errors the server told of, and connections lost."""
    server_cpu: float | None
    """CPU seconds of the server and its children for a second of audio from all sessions: cores.

    None if the server isn't on this machine.
    """
    server_cpu_per_session: float | None
    client_cpu: float
    """CPU seconds of this process, likewise."""


async def bench(
    options: SessionOptions, sessions: int, seconds: float, *, pid: int | None = None
) -> BenchResult:
    """Holds so many sessions for so long, each sending a frame every 80 ms.

    Their phases are spread over a frame. `pid` is the server's process, asked of its `/health`
    if it is on this machine. Raises what `open_session` raises.
    """
    if pid is None:
        pid = await server_pid(options)
    cpu = ServerCpu(pid) if pid is not None else None
    callers = await _open(options, sessions)
    try:
        frames = max(1, round(seconds / callers[0].session.frame_s))
        payloads = _payloads(callers[0].session)
        server_before, client_before = cpu.seconds() if cpu else 0.0, time.process_time()
        began = time.monotonic()
        tasks = [
            asyncio.create_task(caller.run(payloads, frames, began + 0.1, k / sessions))
            for k, caller in enumerate(callers)
        ]
        await asyncio.wait(tasks)
        took = time.monotonic() - began
        server_used = cpu.seconds() - server_before if cpu else None
        client_used = time.process_time() - client_before
        for task in tasks:
            task.result()
    finally:
        await asyncio.gather(*(caller.session.close(_DRAIN_S) for caller in callers))
    audio_s = frames * callers[0].session.frame_s  # a server that falls behind takes longer
    server_cpu = server_used / audio_s if server_used is not None else None
    return _result(callers, took, server_cpu, client_used / audio_s)


def _result(
    callers: list[_Caller], took: float, server_cpu: float | None, client_cpu: float
) -> BenchResult:
    times = [caller.times for caller in callers]
    startup = min(t.startup for t in times)
    latencies = [latency for t in times for latency in t.latencies_s()]
    frame_s = callers[0].session.frame_s
    return BenchResult(
        sessions=len(callers),
        seconds=round(took, 3),
        frames_in=sum(len(t.sent) for t in times),
        frames_out=sum(len(t.received) for t in times),
        lost=sum(t.lost(startup) for t in times),
        misses=sum(latency > frame_s for latency in latencies),
        latency=percentiles(latencies),
        errors=sum(caller.errors for caller in callers),
        server_cpu=round(server_cpu, 4) if server_cpu is not None else None,
        server_cpu_per_session=(
            round(server_cpu / len(callers), 6) if server_cpu is not None else None
        ),
        client_cpu=round(client_cpu, 4),
    )


class _Metadata(msgspec.Struct, gc=False):
    frame_index: int = -1


class _Head(msgspec.Struct, gc=False):
    """What the load reads of a message."""

    type: str
    metadata: _Metadata | None = None


_heads = msgspec.json.Decoder(_Head)


class _Caller:
    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.times = FrameTimes()
        self.errors = 0

    async def run(self, payloads: list[bytes], frames: int, start: float, phase: float) -> None:
        """Sends for the whole time and reads until the session is closed."""
        reader = asyncio.create_task(self._read())
        try:
            await self._send(payloads, frames, start + phase * self.session.frame_s)
            async with asyncio.timeout(_DRAIN_S):
                await reader
        except (ConnectionLost, TimeoutError):
            self.errors += 1
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _send(self, payloads: list[bytes], frames: int, start: float) -> None:
        session, clock, sent = self.session, SystemClock(), self.times.sent
        for k, payload in enumerate(islice(cycle(payloads), frames)):
            await clock.sleep_until(start + k * session.frame_s)
            sent.append(clock.now())
            await session.send_message(payload)
        await session.end_input()

    async def _read(self) -> None:
        receive, decode, received = self.session.receive, _heads.decode, self.times.received
        while True:
            data = await receive()
            at = time.monotonic()
            try:
                head = decode(data)
            except msgspec.MsgspecError as error:
                raise BadEvent(f"the server sent what is no event: {error}") from error
            if head.metadata is not None:
                received.append((head.metadata.frame_index, at))
            elif head.type == "error":
                self.errors += 1
            elif head.type == "session.closed":
                self.session.read(data)
                return


async def _open(options: SessionOptions, sessions: int) -> list[_Caller]:
    limit = asyncio.Semaphore(_OPENING)

    async def one() -> RealtimeSession:
        async with limit:
            return await open_session(options)

    opened = await asyncio.gather(*(one() for _ in range(sessions)), return_exceptions=True)
    failures = [outcome for outcome in opened if isinstance(outcome, BaseException)]
    good = [outcome for outcome in opened if isinstance(outcome, RealtimeSession)]
    if failures:
        await asyncio.gather(*(session.close() for session in good))
        raise failures[0]
    return [_Caller(session) for session in good]


def _payloads(session: RealtimeSession) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [
        append_message(
            session.input_format,
            rng.uniform(-0.3, 0.3, session.frame_size).astype(np.float32),
        )
        for _ in range(_PAYLOADS)
    ]
