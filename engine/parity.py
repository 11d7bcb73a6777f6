"""Compares the models with golden outputs: `python -m engine.parity DIR [DIR ...]`.

A golden directory has `config.json`, `model.safetensors` and `case.npz`, which holds inputs and
what the reference made of them, greedily and in float32:

- codec (its config has `seanet`): `pcm` [samples], `codes` [books, frames], `decoded` [samples];
- Moshi: `user_codes` [sessions, frames, books], `step_output` [sessions, frames, 1 + books], text
  first, -2 for nothing yet, each session having run alone;
- PersonaPlex: `voice_codes` [n, books], `voice_embeddings` and `voice_cache` (the same, saved),
  `text_tokens` [m], `user_codes` [frames, books], `step_output` [frames, 1 + 2 * books].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
import typer
from torch import Tensor

from engine.api import EngineError
from engine.lm.config import LMConfig
from engine.lm.model import RQTransformer
from engine.lm.prompt import Prompt, SavedVoice, build_prompt
from engine.load import choose_device
from engine.mimi.codec import Mimi
from engine.mimi.config import MimiConfig
from engine.rows import Rows
from engine.sampling import GREEDY

MAX_DIFFERENCE: Final = 1e-5
"""Between samples. A right implementation stays within 1e-6."""
_JOIN_EVERY: Final = 7
"""Steps between sessions that join a batch: no divisor of a golden's context or length."""

Json = dict[str, object]
Case = Mapping[str, Tensor]


class Report(msgspec.Struct, frozen=True):
    """How one comparison went."""

    check: str
    equal: int
    frames: int
    difference: float | None = None
    """Largest difference between samples, of a codec."""

    @property
    def passed(self) -> bool:
        """True if every frame is equal and no sample is too far off."""
        close = self.difference is None or self.difference <= MAX_DIFFERENCE
        return self.equal == self.frames > 0 and close

    def __str__(self) -> str:
        text = f"{self.check}: {self.equal}/{self.frames} frames equal"
        if self.difference is not None:
            text += f", largest sample difference {self.difference:.1e}"
        return text if self.passed else f"{text}: FAILED"


def compare(path: Path, device: torch.device) -> Iterator[Report]:
    """Runs the comparisons of a golden directory, whose kind its files tell.

    Raises EngineError that names what is missing or can't be read.
    """
    try:
        options = msgspec.json.decode((path / "config.json").read_bytes(), type=Json)
        with np.load(path / "case.npz") as file:
            case = {name: torch.from_numpy(file[name]).to(device) for name in file.files}
        weights = path / "model.safetensors"
        if "seanet" in options:
            books = len(case["codes"])
            config = MimiConfig.from_json(options)
            yield _codec(Mimi.load(weights, config, books=books, device=device), case)
            return
        lm = RQTransformer.load(weights, LMConfig.from_json(options), device=device)
        yield from (_personaplex if "voice_codes" in case else _moshi)(lm, case)
    except KeyError as error:
        raise EngineError(f"{path / 'case.npz'}: no array {error}") from error
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: not a golden directory: {error}") from error


def _codec(mimi: Mimi, case: Case) -> Report:
    """Encodes and decodes frame by frame."""
    state, rows = mimi.state(1), Rows([0], mimi.upsample.device)
    codes = case["codes"].t()
    frames = case["pcm"].view(-1, 1, mimi.frame_size)
    heard = torch.cat([mimi.encode(state, rows, frame) for frame in frames])
    sound = torch.cat([mimi.decode(state, rows, frame[None]) for frame in codes])
    difference = (sound.flatten() - case["decoded"]).abs().max()
    return Report("codec", _equal(heard, codes), len(codes), difference.item())


def _moshi(lm: RQTransformer, case: Case) -> Iterator[Report]:
    """Every session alone, then all in a batch that they join and leave at different steps."""
    users, expected = case["user_codes"], case["step_output"]
    frames = users.shape[0] * users.shape[1]
    alone = torch.cat([_sessions(lm, user[None], slots=1) for user in users])
    yield Report("sessions alone", _equal(alone, expected), frames)
    # A slot too few: the last session takes one that another has left.
    together = _sessions(lm, users, slots=max(1, len(users) - 1))
    yield Report("sessions joining and leaving", _equal(together, expected), frames)


def _sessions(lm: RQTransformer, users: Tensor, slots: int) -> Tensor:
    """The outputs [sessions, frames, 1 + books] of sessions with the frames `users`.

    Session i has row i % slots; the rows start some steps after one another.
    """
    count, frames, _ = users.shape
    starts = [i % slots * _JOIN_EVERY + i // slots * (frames + 1) for i in range(count)]
    state = lm.state(slots)
    outputs = users.new_empty(count, frames, 1 + lm.config.books)
    for step in range(max(starts) + frames):
        live = [i for i, start in enumerate(starts) if start <= step < start + frames]
        for row in (i % slots for i in live if starts[i] == step):
            state.reset(Rows([row], lm.device))
            state.set_sampling(row, GREEDY)
        if live:
            ages = [step - starts[i] for i in live]
            made = lm.step(state, Rows([i % slots for i in live], lm.device), users[live, ages])
            outputs[live, ages] = torch.cat((made.text[:, None], made.codes), 1)
    return outputs


def _personaplex(lm: RQTransformer, case: Case) -> Iterator[Report]:
    """A prompt and its session, with the voice as codes and as saved."""
    text = case["text_tokens"].tolist()
    saved = SavedVoice.from_file(case["voice_embeddings"].cpu(), case["voice_cache"].cpu())
    # The reference is a frame later, and its first frame is the prompt's last.
    expected = case["step_output"][1:, : 1 + lm.config.books]
    for check, voice in (("voice by codes", case["voice_codes"].cpu()), ("saved voice", saved)):
        made = _prompted(lm, build_prompt(lm.config, voice, text), case["user_codes"])
        yield Report(check, _equal(made[: len(expected)], expected), len(expected))


def _prompted(lm: RQTransformer, prompt: Prompt, user: Tensor) -> Tensor:
    """The outputs [frames, 1 + books] of one session behind a prompt. user: [frames, books]."""
    state, rows = lm.state(1), Rows([0], lm.device)
    state.set_sampling(0, GREEDY)
    for _ in lm.prefill(state, 0, prompt):
        pass
    made = [lm.step(state, rows, frame[None]) for frame in user]
    return torch.cat([torch.cat((step.text[:, None], step.codes), 1) for step in made])


def _equal(ours: Tensor, theirs: Tensor) -> int:
    """How many frames, the last dimension, are equal throughout."""
    return int((ours == theirs).all(-1).sum())


app = typer.Typer(add_completion=False)


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Golden directories.")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; float32 on each.")] = "cpu",
) -> None:
    """Compares the models with golden outputs; exits with 1 unless all are equal."""
    passed = True
    for path in paths:
        try:
            with torch.inference_mode():
                for report in compare(path, choose_device(device)):
                    typer.echo(f"{path.name}: {report}")
                    passed &= report.passed
        except EngineError as error:
            typer.echo(str(error), err=True)
            passed = False
    if not passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
