"""How soon an agent is quiet once its user speaks over it.

    python -m recipes.bench.barge_in --sessions 50 --audio speech.wav

Paced full-duplex sessions on `duplex serve echo`, whose echo comes a second late, so that every
user speaks over the agent. The server finds the speech itself, with its own voice activity model
(silero). Each `overlap.decision` says where in the user's audio it fell; the time from the sending
of the append that holds that place is what is measured: until the last audio of the older epoch
has arrived, and until the client has been told. Beside it the latency of plain frames in the same
run. Prints a table, or JSON with `--json`; without a recording the speech is made up.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from clients.serving import serving
from media.clips import read_clip
from media.clock import SystemClock
from media.formats import AudioFormat, Pcm, encode

_RATE = 24_000
_FRAME = 1_920
_FRAME_S = _FRAME / _RATE
_DELAY_FRAMES = 12
_SPEECH_S, _PAUSE_S = 3.0, 2.0
_RESAMPLER_MS = 1.0
"""What the voice activity model hears is so much late; see `media.resample`."""
_TARGET_MS = 40.0
_SESSION = {
    "turn_detection": {"type": "server_vad"},
    "overlap_policy": "barge_in_on_speech",
    "idle_timeout_s": 60,
}


class Found(msgspec.Struct):
    """What the sessions measured, in milliseconds."""

    quiet_ms: list[float] = []
    """From the append that decided to the last audio of the older epoch, if any came after it."""
    told_ms: list[float] = []
    """From the same append to the decision's arrival."""
    frame_ms: list[float] = []
    """From an append to the frame that its step gave."""
    stale: int = 0
    """Frames of an older epoch that came after the decision."""


class _Delta(msgspec.Struct):
    epoch: int


class _Event(msgspec.Struct):
    """What is read of a server event."""

    type: str
    action: str = ""
    audio_ms: float | None = None
    metadata: _Delta | None = None


_read = msgspec.json.Decoder(_Event).decode


class Caller:
    """One session: sends in real time, and notes when what came back."""

    def __init__(self, appends: list[str], phase: float, found: Found) -> None:
        self._appends, self._phase, self._found = appends, phase, found
        self._clock = SystemClock()
        self._sent: list[float] = []
        self._epoch = 0
        self._last_audio = 0.0

    async def talk(self, http: aiohttp.ClientSession, url: str, began: float) -> None:
        """Sends everything, from `began` and this caller's phase on; then hangs up."""
        async with http.ws_connect(f"{url}/v1/realtime?duplex=1", max_msg_size=0) as socket:
            await socket.send_json({"type": "session.update", "session": _SESSION})
            reader = asyncio.create_task(self._listen(socket))
            for number, append in enumerate(self._appends):
                await self._clock.sleep_until(began + self._phase + number * _FRAME_S)
                self._sent.append(self._clock.now())
                await socket.send_str(append)
            await socket.send_str('{"type": "session.close"}')
            await reader

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            now, event = self._clock.now(), _read(message.data)
            match event.type:
                case "response.output_audio.delta" if event.metadata is not None:
                    self._hear(event.metadata.epoch, now)
                case "overlap.decision" if event.action == "barge_in":
                    self._decide(event.audio_ms, now)
                case "error":
                    raise typer.BadParameter(f"the server refused: {message.data}")

    def _hear(self, epoch: int, now: float) -> None:
        if epoch < self._epoch:
            self._found.stale += 1
            return
        self._last_audio = now
        if now - self._sent[-1] < _FRAME_S:  # else it belongs to an append before
            self._found.frame_ms.append(1000 * (now - self._sent[-1]))

    def _decide(self, audio_ms: float | None, now: float) -> None:
        if audio_ms is None:
            return
        self._epoch += 1
        append = math.ceil((audio_ms + _RESAMPLER_MS) / (1000 * _FRAME_S)) - 1
        decided = self._sent[append]
        self._found.told_ms.append(1000 * (now - decided))
        self._found.quiet_ms.append(max(0.0, 1000 * (self._last_audio - decided)))


def speech(recording: Path | None, seconds: float) -> Pcm:
    """[n] at 24 kHz: stretches of speech with pauses between them."""
    if recording is None:
        voiced = _made_up()
    else:
        whole = read_clip(recording.read_bytes(), _RATE, max_s=600)
        loud = np.flatnonzero(np.abs(whole) > 0.1)
        if not len(loud):
            raise typer.BadParameter(f"{recording} is silent")
        voiced = whole[loud[0] : loud[0] + round(_SPEECH_S * _RATE)]
    turn = np.concatenate([voiced, np.zeros(round(_PAUSE_S * _RATE), np.float32)])
    times = math.ceil(seconds * _RATE / len(turn))
    return np.asarray(np.tile(turn, times)[: round(seconds * _RATE)], np.float32)


def _made_up() -> Pcm:
    """Vowels that glide into one another, five a second: what a voice activity model takes for
    speech. Formants in Hz as measured by Peterson and Barney (1952).
    """
    rng, samples = np.random.default_rng(1), np.arange(round(_SPEECH_S * _RATE))
    vowels = np.array([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480]])
    syllable = _RATE // 5
    spoken = vowels[rng.integers(0, len(vowels), len(samples) // syllable + 2)]
    places = np.arange(len(spoken)) * syllable
    formants = np.stack([np.interp(samples, places, spoken[:, n]) for n in range(3)])
    pitch = 110 - 20 * (samples / _RATE % 1.0)
    phase = 2 * np.pi * np.cumsum(pitch) / _RATE
    width, weight = np.array([[80], [100], [140]]), np.array([1.0, 0.5, 0.25])
    sound = np.zeros(len(samples))
    for harmonic in range(1, 40):
        resonance = weight @ (1 / (1 + ((harmonic * pitch - formants) / width) ** 2))
        sound += resonance * harmonic**-0.3 * np.sin(harmonic * phase)
    sound *= np.clip(np.sin(np.pi * (samples / syllable % 1)), 0, 1) ** 0.5
    return np.asarray(0.6 * sound / np.abs(sound).max(), np.float32)


async def measure(url: str, sound: Pcm, sessions: int) -> Found:
    """Runs the sessions at a time, their frames spread over a frame's length."""
    found = Found()
    appends = [
        json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()})
        for pcm in (
            encode(AudioFormat.PCM16, frame)
            for frame in sound[: len(sound) // _FRAME * _FRAME].reshape(-1, _FRAME)
        )
    ]
    began = SystemClock().now() + 1.0
    async with aiohttp.ClientSession() as http:
        callers = [
            Caller(appends, number * _FRAME_S / sessions, found) for number in range(sessions)
        ]
        await asyncio.gather(*(caller.talk(http, url, began) for caller in callers))
    return found


def _percentiles(values: list[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return round(float(p50), 2), round(float(p99), 2)


def main(
    sessions: Annotated[int, typer.Option(help="Sessions at a time.")] = 50,
    seconds: Annotated[float, typer.Option(help="Of audio in each.")] = 30.0,
    audio: Annotated[Path | None, typer.Option(help="A recording of speech.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """From the speech that counts to the last stale audio, with many sessions."""
    sound = speech(audio, seconds)
    with serving("echo", sessions, DUPLEX_DELAY_FRAMES=str(_DELAY_FRAMES)) as url:
        found = uvloop.run(measure(url, sound, sessions))
    if not found.told_ms or not found.frame_ms:
        raise typer.BadParameter("nobody was interrupted: is there speech in the audio?")
    rows = {
        "quiet": _percentiles(found.quiet_ms),
        "told": _percentiles(found.told_ms),
        "frame": _percentiles(found.frame_ms),
    }
    ratio = round(rows["told"][1] / rows["frame"][1], 2)
    if as_json:
        summary = {"interruptions": len(found.told_ms), "stale": found.stale, "ratio_p99": ratio}
        print(json.dumps(rows | summary))
        return
    table = Table("ms", "p50", "p99", title=f"{len(found.told_ms)} interruptions")
    names = {
        "quiet": "until the last stale audio",
        "told": "until the client is told",
        "frame": "a plain frame",
    }
    for name, (p50, p99) in rows.items():
        table.add_row(names[name], f"{p50:.2f}", f"{p99:.2f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"stale frames after the epoch moved: {found.stale}")
    console.print(f"told, over a plain frame, at p99: {ratio:.2f}")
    console.print(f"target, p99: {_TARGET_MS:g} ms")


if __name__ == "__main__":
    typer.run(main)
