"""Recorded clips: packed to Opus for the journey to the training machine, and read back.

`python -m recipes.nano.clips CLIPS OUT` decodes them once for all stages of a training.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from recipes.nano import domain

SAMPLE_RATE = 24_000
GAP = 480
FILE_SECONDS = 480
SAVED, SOURCE = "pcm.npy", "source.json"
AUDIBLE = 0.03  # of a clip's peak: what ends more quietly is lost in a room
Samples = NDArray[np.int16]


def _write_opus(path: Path, pcm: Samples, kbps: int) -> None:
    """Mono 24 kHz samples -> an Ogg Opus file."""
    import av

    with av.open(str(path), "w", format="ogg") as out:
        stream = out.add_stream("libopus", rate=SAMPLE_RATE)
        stream.layout = "mono"
        stream.bit_rate = kbps * 1000
        stream.options = {"compression_level": "5", "vbr": "on"}
        for at in range(0, len(pcm), SAMPLE_RATE):
            frame = av.AudioFrame.from_ndarray(pcm[None, at : at + SAMPLE_RATE], "s16", "mono")
            frame.sample_rate, frame.pts = SAMPLE_RATE, at
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def recorded(path: Path) -> Iterator[tuple[Samples, dict[str, Any]]]:
    """The clips of an npz recording: samples at 24 kHz, and what each is."""
    with np.load(path) as data:
        pcm, meta = data["pcm"], json.loads(str(data["meta"]))
    ends = np.cumsum([m["n"] for m in meta])
    yield from zip(np.split(pcm, ends[:-1]), meta, strict=True)


def pack(raw: Path, part: str, out: Path, kbps: int) -> None:
    """`RAW/PART-*.npz` -> Ogg Opus files of about eight minutes and an index, `out/PART.json`.

    Raises FileNotFoundError if there is no such recording.
    """
    recordings = sorted(raw.glob(f"{part}-*.npz"))
    if not recordings:
        raise FileNotFoundError(f"{raw} has no recordings of {part}")
    out.mkdir(parents=True, exist_ok=True)
    index = out / f"{part}.json"
    index.unlink(missing_ok=True)  # what is packed half is not there
    meta: list[dict[str, Any]] = []
    chunks: list[Samples] = []
    files, offset = 0, 0

    def flush() -> None:
        nonlocal files, offset
        _write_opus(out / f"{part}{files}.ogg", np.concatenate(chunks), kbps)
        chunks.clear()
        files, offset = files + 1, 0

    clips = (c for path in recordings for c in recorded(path))
    for pcm, clip in clips:
        n = clip["n"]
        meta.append({**clip, "file": f"{part}{files}.ogg", "offset": offset})
        chunks += [pcm, np.zeros(GAP, np.int16)]
        offset += n + GAP
        if offset > FILE_SECONDS * SAMPLE_RATE:
            flush()
    if chunks:
        flush()
    index.write_text(json.dumps(meta))


def _read(path: str) -> Samples:
    import soundfile  # type: ignore[import-not-found,unused-ignore]

    pcm: Samples = soundfile.read(path, dtype="int16")[0]
    return pcm


def _audible(pcm: Samples) -> int:
    """Samples up to the last that can be heard."""
    loud = np.abs(pcm) > AUDIBLE * np.abs(pcm).max()
    return len(pcm) - int(loud[::-1].argmax())


def noise_clips(seed: int, count: int = 200) -> list[Samples]:
    """Short sounds that are no speech: coloured bursts, clicks, tones and warbling hums."""
    rng = np.random.RandomState(seed)
    out = []
    for i in range(count):
        n = int(rng.uniform(0.05, 1.3) * SAMPLE_RATE)
        t = np.arange(n) / SAMPLE_RATE
        if i % 4 == 0:
            spectrum = np.fft.rfft(rng.randn(n))
            spectrum[1:] /= np.arange(1, len(spectrum)) ** rng.uniform(0, 1.2)
            spectrum[0] = 0
            x = np.fft.irfft(spectrum, n)
        elif i % 4 == 1:
            x = rng.randn(n) * np.exp(-t * rng.uniform(10, 80))
        elif i % 4 == 2:
            x = np.zeros(n)
            for j in range(rng.randint(1, 4)):
                x += np.sin(2 * np.pi * rng.uniform(80, 4000) * t + rng.uniform(0, 6)) / (j + 1)
        else:
            warble = rng.uniform(80, 400) + 60 * np.sin(2 * np.pi * rng.uniform(1, 6) * t)
            x = np.sin(2 * np.pi * np.cumsum(warble) / SAMPLE_RATE) * (1 + rng.rand(n))
        x *= np.minimum(1, np.minimum(t / 0.01, t[::-1] / 0.05))
        out.append((x / (np.abs(x).max() + 1e-9) * 0.7 * 32767).astype(np.int16))
    return out


@dataclass
class Clips:
    """All clips as one array. `groups` finds clip numbers by what they hold.

    Group keys: ("agent", voice, kind, key), ("user", intent), ("noise",), ("agent", voice),
    ("user",) and ("agent",).
    """

    pcm: Samples
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    meta: list[dict[str, Any]]
    groups: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, noise_seed: int = 0) -> "Clips":
        """Read a folder of packed parts, and of recordings as they are (npz), or a saved one."""
        if (saved := folder / SAVED).exists():
            meta = json.loads((folder / "meta.json").read_text())
            return cls._of(np.load(saved), meta)
        meta = [m for p in sorted(folder.glob("*.json")) for m in json.loads(p.read_text())]
        files = sorted({m["file"] for m in meta})
        with ThreadPool(min(16, os.cpu_count() or 1)) as pool:  # the decoder releases the GIL
            decoded = pool.map(_read, [str(folder / f) for f in files], 1)
        audio = dict(zip(files, decoded, strict=True))
        parts = [audio[m["file"]][m["offset"] : m["offset"] + m["n"]] for m in meta]
        for recording in sorted(folder.glob("*.npz")):
            for pcm, clip in recorded(recording):
                parts.append(pcm)
                meta.append(clip)
        noise = noise_clips(noise_seed)
        meta += [{"engine": "noise", "intent": "noise", "text": "", "n": len(x)} for x in noise]
        parts += noise
        for m, part in zip(meta, parts, strict=True):
            m["n"], m["audible"] = len(part), _audible(part)
        return cls._of(np.concatenate(parts), meta)

    def lacking(self) -> list[str]:
        """What a training needs and nobody has said."""
        kinds = {("agent", key[2]) for key in self.groups if key[0] == "agent" and len(key) > 2}
        found = kinds | {key for key in self.groups if key[0] == "user"}
        needed = [("agent", kind) for kind in dict.fromkeys(kind for kind, *_ in domain.replies())]
        needed += [("user", intent) for intent in domain.INTENTS if intent != "none"]
        return [f"{who} {what}" for who, what in needed if (who, what) not in found]

    def save(self, folder: Path) -> None:
        """Write a folder that `load` reads at once."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meta.json").write_text(json.dumps(self.meta))
        part = folder / f"{SAVED}.part"
        with part.open("wb") as file:
            np.save(file, self.pcm)
        part.replace(folder / SAVED)

    @classmethod
    def _of(cls, pcm: Samples, meta: list[dict[str, Any]]) -> "Clips":
        length = np.array([m["n"] for m in meta], np.int64)
        start = np.concatenate([[0], np.cumsum(length)[:-1]])
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, m in enumerate(meta):
            match m["engine"]:
                case "agent":
                    groups["agent", m["voice"], m["kind"], m["key"]].append(i)
                    groups["agent", m["voice"]].append(i)
                    groups["agent",].append(i)
                case "noise":
                    groups["noise",].append(i)
                case _:
                    groups["user", m["intent"]].append(i)
                    groups["user",].append(i)
        return cls(pcm, start, length, meta, dict(groups))


def _listing(folder: Path) -> list[list[Any]]:
    """Names, sizes and times of the files in a folder."""
    files = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]


def made_of(saved: Path, folder: Path) -> bool:
    """Is what is in `saved` that of `folder` as it is now?"""
    source = saved / SOURCE
    return source.exists() and json.loads(source.read_text()) == _listing(folder)


def main(clips: Path, out: Path) -> None:
    """Decode all recordings of CLIPS into OUT."""
    listing = _listing(clips)
    found = Clips.load(clips)
    if lacking := found.lacking():
        raise typer.BadParameter(f"{clips} has no recordings of: {', '.join(lacking)}")
    out.mkdir(parents=True, exist_ok=True)
    (out / SOURCE).write_text(json.dumps(listing))
    found.save(out)


if __name__ == "__main__":
    typer.run(main)
