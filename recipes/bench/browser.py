"""Mouth to ear in Chromium: this server, its WebRTC peer alone, and stock aiortc, in turn.

    python -m recipes.bench.browser --seconds 20

Chromium's microphone plays a chirp every 0.73 s (no multiple of a frame's 80 ms, so that every
place in it is measured). Two taps of one audio clock hear it: at the microphone's track, and at
the track that comes back, after the browser's jitter buffer. In between lie encoder, network,
server, network, jitter buffer and decoder. What the sound card's own output would add is as the
browser reports it. The server's part alone is measured by `recipes.bench.rtc_echo`, without a
browser, for the same servers.
"""

from __future__ import annotations

import base64
import json
import tempfile
import wave
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import typer
import uvloop
from aiohttp import web
from rich.console import Console
from rich.table import Table

from clients.serving import serving
from recipes.bench.chromium import Page, chromium, executable
from recipes.bench.rtc_echo import KINDS, alone, measure

Samples = npt.NDArray[np.float32]
AnswerTo = Callable[[str], Awaitable[str]]

RATE: Final = 48_000
_CHIRP_EVERY_S: Final = 0.73
_CHIRP_S: Final = 0.060
_SETTLE_S: Final = 4.0  # the jitter buffer begins with more than it needs

_OFFER = """(async () => {
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  window.microphone = await navigator.mediaDevices.getUserMedia({ audio });
  const peer = window.peer = new RTCPeerConnection();
  peer.addTrack(microphone.getAudioTracks()[0], microphone);
  window.heard = new Promise((resolve) => {
    peer.ontrack = ({ track }) => resolve(new MediaStream([track]));
  });
  await peer.setLocalDescription();
  await new Promise((resolve) => {
    const look = () => peer.iceGatheringState === "complete" && resolve();
    peer.onicegatheringstatechange = look;
    look();
  });
  return peer.localDescription.sdp;
})()"""

_LISTEN = """(async (answer, settleMs, ms) => {
  await peer.setRemoteDescription({ type: "answer", sdp: answer });
  const remote = await heard;
  const voice = new Audio();
  voice.srcObject = remote;
  await voice.play();
  const context = new AudioContext({ sampleRate: %d });
  const merger = new ChannelMergerNode(context, { numberOfInputs: 2 });
  for (const [input, mediaStream] of [microphone, remote].entries())
    new MediaStreamAudioSourceNode(context, { mediaStream }).connect(merger, 0, input);
  await new Promise((resolve) => setTimeout(resolve, settleMs));
  const tap = context.createScriptProcessor(4096, 2, 1);
  const blocks = [];
  tap.onaudioprocess = ({ inputBuffer: { length }, inputBuffer }) => {
    const both = new Int16Array(2 * length);
    for (const channel of [0, 1])
      inputBuffer.getChannelData(channel).forEach((sample, index) => {
        both[2 * index + channel] = 32767 * Math.max(-1, Math.min(1, sample));
      });
    blocks.push(both);
  };
  merger.connect(tap).connect(context.destination);
  await new Promise((resolve) => setTimeout(resolve, ms));
  tap.disconnect();
  const stats = [...(await peer.getStats()).values()].find(({ type }) => type === "inbound-rtp");
  const bytes = new Uint8Array(await new Blob(blocks).arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192)
    text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  peer.close();
  return {
    audio: btoa(text),
    outputMs: 1000 * (context.outputLatency || context.baseLatency),
    bufferMs: (1000 * stats.jitterBufferDelay) / stats.jitterBufferEmittedCount,
  };
})"""


@dataclass(frozen=True)
class Heard:
    """What one server was like."""

    mouth_to_ear_ms: npt.NDArray[np.float64]
    """Of each chirp."""
    buffer_ms: float
    """Mean wait in the browser's jitter buffer."""
    output_ms: float
    """What the browser says of its output."""


def chirp() -> Samples:
    """From 300 Hz to 3 kHz: what every codec of speech keeps."""
    t = np.arange(round(_CHIRP_S * RATE)) / RATE
    phase = 2 * np.pi * (300 * t + (3000 - 300) / (2 * _CHIRP_S) * t * t)
    return (0.5 * np.hanning(len(t)) * np.sin(phase)).astype(np.float32)


def write_microphone(path: Path) -> None:
    """A period of what Chromium's microphone plays over and over."""
    pcm = np.zeros(round(_CHIRP_EVERY_S * RATE), np.float32)
    pcm[: round(_CHIRP_S * RATE)] = chirp()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((pcm * 32767).astype("<i2").tobytes())


def arrivals(pcm: Samples) -> list[int]:
    """Where chirps begin, in samples: the peaks of a matched filter, one in each period."""
    form = chirp()
    size = 1 << (len(pcm) + len(form)).bit_length()
    cross = np.fft.irfft(np.fft.rfft(pcm, size) * np.conj(np.fft.rfft(form, size)), size)
    match = np.abs(cross[: len(pcm)])
    found: list[int] = []
    apart = round(0.6 * _CHIRP_EVERY_S * RATE)
    for place in np.argsort(match)[::-1]:
        if match[place] < 0.3 * match.max():
            break
        if all(abs(int(place) - other) > apart for other in found):
            found.append(int(place))
    return sorted(found)


def delays_ms(both: Samples) -> npt.NDArray[np.float64]:
    """From each chirp in the first column of [n, 2] to its return in the second."""
    returns = np.array(arrivals(both[:, 1]))
    period, found = _CHIRP_EVERY_S * RATE, []
    for sent in arrivals(both[:, 0]):
        back = returns[(returns > sent) & (returns < sent + period)]
        if len(back):
            found.append(1000 * (int(back[0]) - sent) / RATE)
    return np.array(found)


async def hear(page: Page, answer_to: AnswerTo, seconds: float) -> Heard:
    """Calls a server from a page of a secure origin, and listens."""
    answer = await answer_to(await page.run(_OFFER))
    arguments = json.dumps([answer, 1000 * _SETTLE_S, 1000 * seconds])
    found = await page.run(f"{_LISTEN % RATE}(...{arguments})", timeout_s=seconds + 30)
    both = np.frombuffer(base64.b64decode(found["audio"]), "<i2").astype(np.float32)
    delays = delays_ms(both.reshape(-1, 2) / np.float32(32768))
    return Heard(delays, found["bufferMs"], found["outputMs"])


async def through_server(microphone: Path, seconds: float) -> Heard:
    """The whole server: HTTP, session, engine process, peer."""
    with serving("echo", 2) as url:
        async with _browse(f"http://localhost:{url.rpartition(':')[2]}/", microphone) as page:

            async def answer_to(offer: str) -> str:
                headers = {"Content-Type": "application/sdp"}
                request = json.dumps({"method": "POST", "headers": headers, "body": offer})
                asked = f"fetch('v1/realtime/calls?duplex=1', {request})"
                return str(await page.run(f"{asked}.then((answer) => answer.text())"))

            return await hear(page, answer_to, seconds)


async def through_echo(kind: str, microphone: Path, seconds: float) -> Heard:
    """`peer` or `stock` alone, signalled by hand."""
    async with (
        _blank() as address,
        _browse(address, microphone) as page,
        alone(kind) as echo,
    ):
        return await hear(page, echo.answer_to, seconds)


async def compare(seconds: float) -> None:
    """Measures all and prints a table."""
    with tempfile.TemporaryDirectory() as folder:
        microphone = Path(folder) / "chirps.wav"
        write_microphone(microphone)
        browser = [
            await through_server(microphone, seconds),
            await through_echo("peer", microphone, seconds),
            await through_echo("stock", microphone, seconds),
        ]
    parts = [(await measure(kind, 1, seconds)).percentile(50) for kind in KINDS]
    table = Table(title=f"WebRTC echo from Chromium on loopback, {seconds:g} s each")
    for column in ("", "this server", "its peer alone", "stock aiortc"):
        table.add_column(column, justify="right" if column else "left")
    for name, q in (("p50", 50), ("p95", 95)):
        cells = [f"{np.percentile(heard.mouth_to_ear_ms, q):.0f}" for heard in browser]
        table.add_row(f"microphone track to played track, {name}, ms", *cells)
    table.add_row("  of it in the browser's buffer, ms", *(f"{h.buffer_ms:.0f}" for h in browser))
    table.add_row("chirps heard", *(str(len(heard.mouth_to_ear_ms)) for heard in browser))
    table.add_row("browser's output besides, ms", *(f"{heard.output_ms:.0f}" for heard in browser))
    cells = [f"{part:.0f}" for part in parts]
    table.add_row("server's part, RTP in to RTP out, p50, ms", *cells)
    Console().print(table)


@asynccontextmanager
async def _browse(address: str, microphone: Path) -> AsyncIterator[Page]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with chromium(Path(profile), microphone=microphone) as page:
            await page.goto(address)
            yield page


@asynccontextmanager
async def _blank() -> AsyncIterator[str]:
    """An empty page on localhost, which browsers trust with the microphone."""

    async def empty(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://localhost:{runner.addresses[0][1]}/"
    await runner.cleanup()


def main(
    seconds: Annotated[float, typer.Option(help="Of measuring, for each server.")] = 20.0,
) -> None:
    """Mouth to ear in Chromium: this server, its WebRTC peer alone, and stock aiortc."""
    if executable() is None:
        raise typer.BadParameter("there is no chromium here: apt-get install chromium")
    uvloop.run(compare(seconds))


if __name__ == "__main__":
    typer.run(main)
