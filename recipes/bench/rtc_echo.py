"""WebRTC echo: this server, its peer alone and stock aiortc, each in processes of its own, for the
same callers (`recipes.bench.rtc_callers`).

    python -m recipes.bench.rtc_echo --peers 40 --seconds 60

Latency is from a packet's sending to its return: the server's part and twice the loopback. CPU is
that of the process that has the peers; the whole server's engine is a process of its own. What was
lost is as the server counts it, when the calls have ended. Ends with 1 if the server or the peer
lost a frame, took more than 2.5 % of a core a peer, or 100 ms and more for half of the packets; the
last is judged up to 8 callers, since more of them keep the machine's processors from the server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import aiohttp
import numpy as np
import psutil
import typer
import uvloop
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from clients.serving import serving
from media.clock import SystemClock
from media.rtc.events import AudioFrame
from media.rtc.peer import Peer
from recipes.bench.rtc_callers import Caller, talk

KINDS: Final = ("server", "peer", "stock")
NAMES: Final = {"server": "this server", "peer": "its peer alone", "stock": "stock aiortc"}
FATES: Final = ("input_lost", "input_dropped", "output_dropped")
"""What may become of samples that are not heard."""

MAX_CPU_PERCENT: Final = 2.5
MAX_P50_MS: Final = 100.0
RETURNED_SHARE: Final = 0.999
"""Of the packets sent; some are under way when the count begins, and others when it ends."""
MAX_JUDGED_PEERS: Final = 8
"""So many callers leave a machine of two processors to the server."""

_LISTENERS: Final = 8
"""So many callers decode what comes back."""
_AT_ONCE: Final = 8
"""So many callers hang up together."""
_SETTLE_S: Final = 2.0
"""What connecting cost is not what a call costs."""


@dataclass
class Result:
    """Of one server under load."""

    latencies_ms: list[float]
    cpu_percent_per_peer: float
    connect_ms: float
    sent: int
    returned: int
    lost: dict[str, int]
    """Samples at 24 kHz, by what became of them; nothing of stock aiortc, which doesn't count."""

    def percentile(self, q: float) -> float:
        """Of the latencies, in milliseconds."""
        return float(np.percentile(self.latencies_ms, q))

    def good(self, peers: int) -> bool:
        """Whether it is what a server of ours must be for so many callers."""
        return (
            not any(self.lost.values())
            and self.returned >= RETURNED_SHARE * self.sent
            and self.cpu_percent_per_peer <= MAX_CPU_PERCENT
            and (peers > MAX_JUDGED_PEERS or self.percentile(50) < MAX_P50_MS)
        )


@dataclass
class Echo:
    """A server under test."""

    process: psutil.Process
    answer_to: Callable[[str], Awaitable[str]]
    lost: Callable[[], Awaitable[dict[str, int]]]
    """Once all callers have hung up."""


async def serve(kind: str) -> None:
    """Answers each line of stdin, a JSON string, with one on stdout, until stdin ends; the word
    "lost" with what the peers have lost that are gone by then.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    echoes: list[asyncio.Task[Peer]] = []
    connections: list[RTCPeerConnection] = []
    while line := await reader.readline():
        offer, answer = json.loads(line), ""
        if offer == "lost":
            answer = json.dumps(_lost([await echo for echo in echoes]))
        elif kind == "peer":
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
    await asyncio.gather(*echoes)


async def _echo(peer: Peer) -> Peer:
    async for event in peer:
        if isinstance(event, AudioFrame):
            peer.send_audio(event.pcm)
    return peer


def _lost(peers: list[Peer]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for peer in peers:
        stats = peer.stats()
        total["input_lost"] += stats.input.lost_samples
        total["input_dropped"] += stats.input.dropped_samples
        total["output_dropped"] += stats.output.dropped_samples
    return dict(total)


@asynccontextmanager
async def alone(kind: str) -> AsyncIterator[Echo]:
    """`peer` or `stock` in a process of its own."""
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
        return str(json.loads(await stdout.readline()))

    async def lost() -> dict[str, int]:
        counted: dict[str, int] = json.loads(await answer_to("lost"))
        return counted

    yield Echo(psutil.Process(process.pid), answer_to, lost)
    stdin.close()
    await process.wait()


@asynccontextmanager
async def whole(peers: int) -> AsyncIterator[Echo]:
    """The whole server: HTTP, sessions, peers, and the engine's process."""
    with serving("echo", peers) as url:
        address = url.replace("ws", "http", 1)
        async with aiohttp.ClientSession() as http:

            async def answer_to(offer: str) -> str:
                async with http.post(
                    f"{address}/v1/realtime/calls?duplex=1",
                    data=offer,
                    headers={"Content-Type": "application/sdp"},
                ) as answer:
                    answer.raise_for_status()
                    return await answer.text()

            async def lost() -> dict[str, int]:
                while True:
                    async with http.get(f"{address}/metrics") as answer:
                        found = _metrics(await answer.text())
                    if not found["duplex_sessions"]:
                        return {
                            fate: int(found[f"duplex_call_samples_total {fate}"]) for fate in FATES
                        }
                    await asyncio.sleep(0.1)

            yield Echo(_owner(int(address.rpartition(":")[2])), answer_to, lost)


def _metrics(text: str) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _owner(port: int) -> psutil.Process:
    """The child of ours that listens on a port."""
    for child in psutil.Process().children():
        for connection in child.net_connections("tcp"):
            if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return child
    raise RuntimeError(f"nobody listens on port {port}")


def under_test(kind: str, peers: int) -> AbstractAsyncContextManager[Echo]:
    """One of KINDS, for so many callers."""
    return whole(peers) if kind == "server" else alone(kind)


async def measure(kind: str, peers: int, seconds: float) -> Result:
    """Runs one server with so many callers."""
    async with under_test(kind, peers) as echo:
        callers = [Caller(number, listens=number < _LISTENERS) for number in range(peers)]
        for caller in callers:
            await caller.connect(echo.answer_to)
        talking = asyncio.create_task(talk(callers))
        await asyncio.sleep(_SETTLE_S)
        clock = SystemClock()
        for caller in callers:
            caller.counts.bursts.clear()
        before, began = echo.process.cpu_times(), clock.now()
        counts = [(caller.counts.sent, caller.counts.returned) for caller in callers]
        await asyncio.wait({talking}, timeout=seconds)
        after, ended = echo.process.cpu_times(), clock.now()
        used = after.user + after.system - before.user - before.system
        result = Result(
            latencies_ms=[1000 * s for caller in callers for s in caller.counts.latencies_s()],
            cpu_percent_per_peer=100 * used / (ended - began) / peers,
            connect_ms=1000 * float(np.median([caller.connect_s for caller in callers])),
            sent=sum(c.counts.sent - n for c, (n, _) in zip(callers, counts, strict=True)),
            returned=sum(c.counts.returned - n for c, (_, n) in zip(callers, counts, strict=True)),
            lost={},
        )
        talking.cancel()
        for first in range(0, peers, _AT_ONCE):
            await asyncio.gather(*(caller.close() for caller in callers[first : first + _AT_ONCE]))
        if kind != "stock":
            result.lost = await echo.lost()
    return result


def _ms(fate: str, result: Result) -> str:
    return f"{result.lost[fate] / 24:.0f}" if result.lost else "not counted"


async def compare(kinds: tuple[str, ...], peers: int, seconds: float) -> bool:
    """Measures them one after the other and prints a table; whether all of ours are good."""
    results = {kind: await measure(kind, peers, seconds) for kind in kinds}
    table = Table(title=f"WebRTC echo, {peers} callers, {seconds:g} s each")
    table.add_column("")
    for kind in kinds:
        table.add_column(NAMES[kind], justify="right")
    rows: dict[str, Callable[[Result], str]] = {
        "RTP in to RTP out, p50, ms": lambda r: f"{r.percentile(50):.1f}",
        "RTP in to RTP out, p99, ms": lambda r: f"{r.percentile(99):.1f}",
        "CPU a peer, % of a core": lambda r: f"{r.cpu_percent_per_peer:.2f}",
        "offer to connected, p50, ms": lambda r: f"{r.connect_ms:.0f}",
        "packets back for each sent": lambda r: f"{r.returned / r.sent:.4f}",
        **{f"{fate.replace('_', ' ')}, ms": partial(_ms, fate) for fate in FATES},
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(result) for result in results.values()))
    console = Console()
    console.print(table)
    load = psutil.cpu_percent(interval=1.0)
    console.print(f"with nothing of this running, the machine's processors are {load:.0f} % busy")
    return all(result.good(peers) for kind, result in results.items() if kind != "stock")


def main(
    peers: Annotated[int, typer.Option(help="Callers at once.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of measuring, for each server.")] = 10.0,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(KINDS)}.")] = None,
    serve_kind: Annotated[str | None, typer.Option("--serve", hidden=True)] = None,
) -> None:
    """Echo over WebRTC: latency, losses and CPU of this server, its peer and stock aiortc."""
    if serve_kind is not None:
        uvloop.run(serve(serve_kind))
    elif not uvloop.run(compare(tuple(only or KINDS), peers, seconds)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
