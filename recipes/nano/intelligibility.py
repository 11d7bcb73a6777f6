"""Is nano's speech understood? `python -m recipes.nano.intelligibility REPLIES`.

REPLIES is what `evaluate --save REPLIES` wrote. pocketsphinx, given a grammar of all replies,
listens to every right greeting, name and sum; as controls it gets the same sounds with their
parts in another order, and noise, and should refuse these.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from media.files import read_audio
from recipes.nano import domain

RATE = 16_000
KINDS = ("greet", "name", "sum")
PIECES = 9
Pcm = NDArray[np.float32]


def grammar() -> str:
    """A JSGF grammar of every greeting, name and sum."""
    numbers = "|".join(domain.number(n) for n in range(domain.MAX_NUMBER + 1))
    results = "|".join(
        domain.number(n) for n in range(-domain.MAX_NUMBER, 2 * domain.MAX_NUMBER + 1)
    )
    fixed = [*domain.GREETINGS, *(domain.name_reply(n) for n in domain.NAMES)]
    return (
        "#JSGF V1.0; grammar replies;\n"
        f"<number> = {numbers};\n<result> = {results};\n"
        f"public <reply> = {'|'.join(fixed)} | <number> (plus|minus) <number> is <result>;\n"
    )


class Listener:
    """pocketsphinx with the grammar; hears words, or None."""

    def __init__(self, least_score: float) -> None:
        from pocketsphinx import Decoder  # type: ignore[import-not-found,unused-ignore]

        self._decoder: Any = Decoder(lm=None, loglevel="FATAL", samprate=RATE)
        self._decoder.add_jsgf_string("replies", grammar())
        self._decoder.activate_search("replies")
        self._least = least_score

    def score(self, pcm: Pcm) -> tuple[str | None, float]:
        """The best sentence and its acoustic score a frame."""
        loud = np.flatnonzero(np.abs(pcm) > 0.01)
        if not len(loud):
            return None, -1e9
        margin = RATE // 5
        pcm = pcm[max(0, loud[0] - margin) : loud[-1] + margin]
        data = (pcm / np.abs(pcm).max() * 0.6 * 32767).astype(np.int16)
        self._decoder.start_utt()
        self._decoder.process_raw(data.tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        if found is None or not found.hypstr:
            return None, -1e9
        return found.hypstr, found.score / max(1, self._decoder.n_frames())

    def hear(self, pcm: Pcm) -> str | None:
        words, score = self.score(pcm)
        return words if score >= self._least else None


def shuffled(pcm: Pcm, rng: random.Random) -> Pcm:
    """The same sound, its pieces in another order."""
    loud = np.flatnonzero(np.abs(pcm) > 0.01)
    pieces = np.array_split(pcm[loud[0] : loud[-1]], PIECES)
    order = list(range(PIECES))
    while order == list(range(PIECES)):
        rng.shuffle(order)
    out: Pcm = np.concatenate([pieces[i] for i in order])
    return out


def main(folder: Path, least_score: float = -1e9) -> None:
    """Print the share of right replies that are understood, and of controls that are refused."""
    rng, listener = random.Random(0), Listener(least_score)
    verdicts = json.loads((folder / "verdicts.json").read_text())
    understood, refused, total = 0, 0, 0
    for v in verdicts:
        if v["kind"] not in KINDS or not v["right"]:
            continue
        pcm = read_audio(folder / Path(v["wav"]).with_suffix(".wav").name, RATE)
        total += 1
        understood += listener.hear(pcm) == v["heard"]
        refused += listener.hear(shuffled(pcm, rng)) != v["heard"]
        noise = np.random.RandomState(total).randn(2 * RATE).astype(np.float32) * 0.1
        refused += listener.hear(noise) != v["heard"]
    print(f"understood {understood}/{total}, controls refused {refused}/{2 * total}")


if __name__ == "__main__":
    typer.run(main)
