"""How nano's codec sounds: `python -m recipes.nano.sound MODEL CLIPS`.

CLIPS are the agent's recordings. Each goes through the model's codec as a stream, frame by frame;
STOI (pystoi) compares what comes out with what went in. The click test decodes silence from the
start of a stream.
"""

from pathlib import Path

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from engine.directory import read_directory
from engine.mimi.codec import Mimi
from engine.rows import Rows
from recipes.nano.clips import SAMPLE_RATE, Clips

KINDS = ("sum", "name", "greet", "thanks", "sorry")
Pcm = NDArray[np.float32]


class Stream:
    """A codec that has heard nothing yet."""

    def __init__(self, model: Path) -> None:
        directory = read_directory(model)
        self._mimi = Mimi.load(directory.mimi, directory.mimi_config)
        self._rows = Rows([0], torch.device("cpu"))

    @torch.inference_mode()
    def through(self, pcm: Pcm) -> Pcm:
        """Coded and decoded from a fresh state; the tail that fills no frame is cut."""
        state, size = self._mimi.state(1), self._mimi.frame_size
        frames = torch.from_numpy(pcm[: len(pcm) // size * size]).view(-1, 1, size)
        out = [
            self._mimi.decode(state, self._rows, self._mimi.encode(state, self._rows, frame))
            for frame in frames
        ]
        heard: Pcm = torch.cat(out, 1)[0].numpy()
        return heard


def main(model: Path, clips_dir: Path, count: int = 24) -> None:
    """Print STOI by voice, mean and worst of `count` clips, and the peak of decoded silence."""
    from pystoi import stoi  # type: ignore[import-not-found,unused-ignore]

    stream, clips = Stream(model), Clips.load(clips_dir)
    for voice in range(2):
        numbers = [i for i in clips.groups["agent", voice] if clips.meta[i]["kind"] in KINDS]
        scores = []
        for i in numbers[:: max(1, len(numbers) // count)]:
            start, length = int(clips.start[i]), int(clips.length[i])
            pcm = clips.pcm[start : start + length].astype(np.float32) / np.float32(32768)
            pcm = np.pad(pcm, (SAMPLE_RATE // 4, 0)).astype(np.float32)
            heard = stream.through(pcm)
            scores.append(stoi(pcm[: len(heard)], heard, SAMPLE_RATE))
        print(
            f"voice {voice}: STOI {np.mean(scores):.3f}, worst {min(scores):.3f}, n={len(scores)}"
        )
    silence = stream.through(np.zeros(SAMPLE_RATE, np.float32))
    print(f"silence from the start of a stream: peak {np.abs(silence).max():.1e}")


if __name__ == "__main__":
    typer.run(main)
