"""Synthesise the speech that nano is trained on: `python -m recipes.nano.synthesise PART OUT`.

Parts: `agent` (two voices, every reply, with word onsets), `fast` (espeak-ng, flite, hibari) and
`kokoro`. Each writes `OUT/PART.npz`; `pack` makes of one the small Opus files that training reads.
"""

import json
import math
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from recipes.nano import domain
from recipes.nano.clips import pack
from recipes.nano.speech import SAMPLE_RATE, Hibari, Kokoro, Pcm, Speak, Timbre, espeak, flite, trim

app = typer.Typer(add_completion=False)
console = Console()
PEAK = 0.7
AGENT_VOICES = (Timbre(), Timbre(pitch=0.6, formants=0.9))


class Recorder:
    """Collects clips as 16-bit audio back to back with a list of what each one is."""

    def __init__(self) -> None:
        self._pcm: list[NDArray[np.int16]] = []
        self._meta: list[dict[str, Any]] = []

    def add(self, pcm: Pcm, **meta: Any) -> bool:
        """Trim, set the peak and keep; refuses clips that are empty, broken or over 5 s."""
        pcm, cut = trim(pcm)
        if not 0.12 * SAMPLE_RATE < len(pcm) < 5 * SAMPLE_RATE or not np.isfinite(pcm).all():
            return False
        if "onsets" in meta:
            meta["onsets"] = [round(max(0.0, t - cut), 3) for t in meta["onsets"]]
        self._pcm.append((pcm / (np.abs(pcm).max() + 1e-9) * PEAK * 32767).astype(np.int16))
        self._meta.append({"n": len(pcm), **meta})
        return True

    def save(self, path: Path) -> None:
        np.savez(path, pcm=np.concatenate(self._pcm), meta=json.dumps(self._meta))
        minutes = sum(m["n"] for m in self._meta) / SAMPLE_RATE / 60
        console.print(f"{path.name}: {len(self._meta)} clips, {minutes:.1f} min")


def _punctuated(request: domain.Request, rng: random.Random) -> str:
    asks = request.text.startswith(("what", "who", "how", "can", "where", "do", "are", "is"))
    return request.text + ("?" if asks and rng.random() < 0.8 else rng.choice((".", ".", "!", ".")))


def record_users(
    out: Recorder,
    name: str,
    speak: Speak,
    rng: random.Random,
    *,
    count: int,
    limit_s: float = math.inf,
) -> None:
    """Draw `count` requests (fewer if the time is up) and have an engine say them."""
    start = time.monotonic()
    for i in range(count):
        if time.monotonic() - start > limit_s:
            break
        request = domain.random_request(rng)
        pcm, voice = speak(_punctuated(request, rng), rng)
        out.add(pcm, engine=name, voice=voice, **asdict(request))
        if i % 500 == 499:
            console.print(f"{name}: {i + 1} in {time.monotonic() - start:.0f} s")


def record_agent(out: Recorder, tts: Hibari, rng: random.Random) -> None:
    """Every reply in both agent voices. Counts and days are made of single words."""

    def say(kind: str, key: str, text: str, end: str, takes: int) -> None:
        for _ in range(takes):
            speed, seed = rng.uniform(1.0, 1.15), rng.randrange(1 << 30)
            for voice, timbre in enumerate(AGENT_VOICES):
                pcm, onsets = tts.say(text + end, speed, timbre, seed)
                if len(onsets) != len(text.split()):
                    raise ValueError(f"{text!r}: {len(onsets)} word onsets")
                meta = {"kind": kind, "key": key, "text": text, "onsets": onsets}
                out.add(pcm, engine="agent", voice=voice, **meta)

    for n in range(domain.MAX_NUMBER + 1):
        say("item", domain.number(n), domain.number(n), ",", 8)
        say("last", domain.number(n), domain.number(n), ".", 6)
    for day in domain.DAYS:
        say("item", day, day, ",", 6)
        say("last", day, day, ".", 2)
    for op in ("plus", "minus"):
        for a in range(domain.MAX_NUMBER + 1):
            for b in range(domain.MAX_NUMBER + 1):
                say("sum", f"{a} {op} {b}", domain.sum_reply(op, a, b), ".", 1)
    for name in domain.NAMES:
        say("name", name, domain.name_reply(name), ".", 8)
    for i, greeting in enumerate(domain.GREETINGS):
        say("greet", str(i), greeting, ".", 12)
    for kind, text in (
        ("thanks", domain.THANKS_REPLY), ("bye", domain.BYE_REPLY), ("sorry", domain.SORRY_REPLY),
    ):  # fmt: skip
        say(kind, "", text, ".", 14)


@app.command()
def agent(out: Path, seed: int = 7) -> None:
    """Record the agent's two voices."""
    out.mkdir(parents=True, exist_ok=True)
    clips = Recorder()
    record_agent(clips, Hibari(out), random.Random(seed))
    clips.save(out / "agent.npz")


@app.command()
def fast(out: Path, scale: float = 1.0, seed: int = 100) -> None:
    """Record users with espeak-ng, flite and hibari (minutes)."""
    out.mkdir(parents=True, exist_ok=True)
    rng, clips = random.Random(seed), Recorder()
    record_users(clips, "hibari", Hibari(out), rng, count=int(3600 * scale))
    record_users(clips, "espeak", espeak, rng, count=int(4400 * scale))
    record_users(clips, "flite", flite, rng, count=int(1000 * scale))
    clips.save(out / "fast.npz")


@app.command("hibari")
def hibari_command(out: Path, count: int = 4000, seed: int = 400) -> None:
    """Record more users with hibari alone."""
    out.mkdir(parents=True, exist_ok=True)
    clips = Recorder()
    record_users(clips, "hibari", Hibari(out), random.Random(seed), count=count)
    clips.save(out / "hibari.npz")


@app.command()
def kokoro(
    out: Path,
    voices: Annotated[Path, typer.Argument(help="folder of Kokoro style tables (*.bin)")],
    count: int = 3000,
    minutes: float = 45,
    seed: int = 200,
) -> None:
    """Record users with Kokoro (about a second of CPU a clip)."""
    out.mkdir(parents=True, exist_ok=True)
    clips = Recorder()
    rng = random.Random(seed)
    record_users(clips, "kokoro", Kokoro(voices), rng, count=count, limit_s=minutes * 60)
    clips.save(out / "kokoro.npz")


@app.command("pack")
def pack_command(part: Path, packed: Path, kbps: int = 15) -> None:
    """Compress a recorded part (`OUT/PART.npz`) to Ogg Opus with a JSON index."""
    pack(part, packed, kbps)


if __name__ == "__main__":
    app()
