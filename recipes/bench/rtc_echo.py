"""WebRTC echo: this server's peer against stock aiortc, each in a process of its own, same callers.

    python -m recipes.bench.rtc_echo --peers 8 --seconds 10

Callers send silence with a burst of noise in one packet now and then, and decode what comes back
as it comes, in no jitter buffer. Latency is from a packet's sending to its return: the server's
part and twice the loopback. CPU is the server process's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Final

import av
import numpy as np
import psutil
import typer
import uvloop
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.rtp import RtpPacket
from av.stream import Stream
from rich.console import Console
from rich.table import Table

from media.clock import SystemClock
from media.opus import CLOCK_RATE, PACKET_SAMPLES, PACKET_TICKS, OpusDecoder, OpusEncoder
from media.rtc import aiortc_internals
from media.rtc.events import AudioFrame
from media.rtc.peer import Peer

SERVERS: Final = ("peer", "stock")

_BURST_EVERY = 23  # packets: no multiple of a frame's four, so that every place in it is measured
_LOUD = 0.05  # RMS
_PACKET_S = 0.02


@dataclass
class Result:
    """Of one server under load."""

    latencies_ms: list[float]
    cpu_percent_per_peer: float
    connect_ms: float
    sent: int
    returned: int


@dataclass
class Burst(MediaStreamTrack):
    """A microphone that is silent but for a burst every `_BURST_EVERY` packets."""

    kind = "audio"
    phase: int
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.sent = 0
        self._clock = SystemClock()
        self._start = 0.0
        encoder = OpusEncoder(fec=False)
        noise = np.random.default_rng(self.phase).uniform(-0.5, 0.5, PACKET_SAMPLES)
        silence = np.zeros(PACKET_SAMPLES, np.float32)
        pieces = [noise.astype(np.float32)] + [silence] * (_BURST_EVERY - 1)
        self._payloads = [bytes(encoder.encode(piece, 0)) for piece in pieces]

    __hash__ = MediaStreamTrack.__hash__

    async def recv(self) -> av.Packet[Stream]:
        """The next packet, on an absolute deadline."""
        if self.sent == 0:
            self._start = self._clock.now()
        await self._clock.sleep_until(self._start + self.sent * _PACKET_S)
        k = (self.sent + self.phase) % _BURST_EVERY
        packet = av.Packet(self._payloads[k])
        packet.pts, packet.time_base = self.sent * PACKET_TICKS, Fraction(1, CLOCK_RATE)
        self.sent += 1
        if k == 0:
            self.times.append(self._clock.now())
        return packet


class Caller:
    """Sends bursts and notes when they come back."""

    def __init__(self, phase: int) -> None:
        self.microphone = Burst(phase)
        self.returns: list[float] = []
        self.returned = 0
        self.connect_s = 0.0
        self._clock = SystemClock()
        self._loud_until = 0.0
        self._decoder = OpusDecoder()
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    async def connect(self, answer_to: Callable[[str], Awaitable[str]]) -> None:
        """Offers, and returns when the connection stands."""
        pc = self._pc
        began = self._clock.now()
        pc.addTrack(self.microphone)
        connected = asyncio.Event()

        def on_state() -> None:
            if pc.connectionState == "connected":
                connected.set()

        pc.on("connectionstatechange", on_state)
        await pc.setLocalDescription(await pc.createOffer())
        answer = await answer_to(pc.localDescription.sdp)
        aiortc_internals.take_packets(pc.getReceivers()[0], self._on_packet)
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await connected.wait()
        self.connect_s = self._clock.now() - began

    async def close(self) -> None:
        """Hangs up."""
        await self._pc.close()

    def latencies(self) -> list[float]:
        """Seconds from each burst's sending to its return."""
        found = []
        for sent in self.microphone.times:
            back = [time for time in self.returns if sent < time < sent + _BURST_EVERY * _PACKET_S]
            if back:
                found.append(back[0] - sent)
        return found

    def _on_packet(self, packet: RtpPacket) -> None:
        self.returned += 1
        now = self._clock.now()
        pcm = self._decoder.decode(packet.payload)
        if float(np.sqrt(np.mean(pcm * pcm))) >= _LOUD:
            if now > self._loud_until:  # a burst lies in two packets: codecs look ahead
                self.returns.append(now)
            self._loud_until = now + 5 * _PACKET_S


async def serve(server: str) -> None:
    """Answers each line of stdin, a JSON string, with one on stdout, until stdin ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    echoes: list[asyncio.Task[None]] = []
    connections: list[RTCPeerConnection] = []
    while line := await reader.readline():
        offer = json.loads(line)
        if server == "peer":
            peer = await Peer.accept(offer)
            echoes.append(asyncio.create_task(_echo(peer)))
            answer = peer.answer
        else:
            connections.append(connection := RTCPeerConnection(RTCConfiguration(iceServers=[])))
            connection.on("track", connection.addTrack)
            await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            await connection.setLocalDescription(await connection.createAnswer())
            answer = connection.localDescription.sdp
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for connection in connections:
        await connection.close()
    for echo in echoes:
        await echo


async def _echo(peer: Peer) -> None:
    async for event in peer:
        if isinstance(event, AudioFrame):
            peer.send_audio(event.pcm)


@asynccontextmanager
async def echo_server(
    kind: str,
) -> AsyncIterator[tuple[psutil.Process, Callable[[str], Awaitable[str]]]]:
    """`peer` or `stock` in a process of its own, and a function that has it answer an offer."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "recipes.bench.rtc_echo", "--serve", kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def answer_to(offer: str) -> str:
        stdin.write(json.dumps(offer).encode() + b"\n")
        answer = json.loads(await stdout.readline())
        assert isinstance(answer, str)
        return answer

    yield psutil.Process(process.pid), answer_to
    stdin.close()
    await process.wait()


async def measure(kind: str, peers: int, seconds: float) -> Result:
    """Runs one server with so many callers."""
    async with echo_server(kind) as (process, answer_to):
        callers = [Caller(phase) for phase in range(peers)]
        for caller in callers:
            await caller.connect(answer_to)
        await asyncio.sleep(2.0)  # what connecting cost is not what a call costs
        for caller in callers:
            caller.microphone.times.clear()
        clock = SystemClock()
        before, began = process.cpu_times(), clock.now()
        counts = [(caller.microphone.sent, caller.returned) for caller in callers]
        await asyncio.sleep(seconds)
        after, ended = process.cpu_times(), clock.now()
        used = after.user + after.system - before.user - before.system
        latencies = [latency * 1000 for caller in callers for latency in caller.latencies()]
        result = Result(
            latencies_ms=latencies,
            cpu_percent_per_peer=100 * used / (ended - began) / peers,
            connect_ms=1000 * float(np.median([caller.connect_s for caller in callers])),
            sent=sum(c.microphone.sent - n for c, (n, _) in zip(callers, counts, strict=True)),
            returned=sum(c.returned - n for c, (_, n) in zip(callers, counts, strict=True)),
        )
        for caller in callers:
            await caller.close()
    return result


async def compare(peers: int, seconds: float) -> None:
    """Measures both and prints a table with ratios."""
    ours, stock = [await measure(kind, peers, seconds) for kind in SERVERS]
    table = Table(title=f"WebRTC echo, {peers} callers, {seconds:g} s each")
    for column in ("", "this server", "stock aiortc", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    rows = [
        ("RTP in to RTP out, p50, ms", *_percentiles(ours, stock, 50)),
        ("RTP in to RTP out, p99, ms", *_percentiles(ours, stock, 99)),
        ("CPU a peer, % of a core", ours.cpu_percent_per_peer, stock.cpu_percent_per_peer),
        ("offer to connected, p50, ms", ours.connect_ms, stock.connect_ms),
        ("packets back for each sent", ours.returned / ours.sent, stock.returned / stock.sent),
    ]
    for name, mine, theirs in rows:
        table.add_row(name, f"{mine:.2f}", f"{theirs:.2f}", f"{mine / theirs:.2f}")
    Console().print(table)


def _percentiles(ours: Result, stock: Result, q: float) -> tuple[float, float]:
    mine, theirs = np.percentile(ours.latencies_ms, q), np.percentile(stock.latencies_ms, q)
    return float(mine), float(theirs)


def main(
    peers: Annotated[int, typer.Option(help="Callers at once.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of measuring, for each server.")] = 10.0,
    serve_kind: Annotated[str | None, typer.Option("--serve", hidden=True)] = None,
) -> None:
    """Echo over WebRTC: latency and CPU of this server's peer and of stock aiortc."""
    uvloop.run(serve(serve_kind) if serve_kind else compare(peers, seconds))


if __name__ == "__main__":
    typer.run(main)
