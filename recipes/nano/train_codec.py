"""Train the codec on one GPU: `python -m recipes.nano.train_codec CLIPS OUT --seconds 300`.

Half of the windows are the agent's clean voices, the rest people with room and noise, and noise
alone. Schedule, in shares of the time: 8 % without quantiser, the second half with discriminators,
the last fifth with the batch norms frozen.
"""

import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from recipes.nano.clips import SAMPLE_RATE, Clips
from recipes.nano.codec import HOP, Codec
from recipes.nano.losses import (
    CharacterHead,
    Discriminators,
    EnvelopeLoss,
    MelLoss,
    adversarial_losses,
    character_loss,
    discriminator_loss,
)
from recipes.nano.mixing import ClipBank, augment
from recipes.nano.weights import load_parts, save_parts

console = Console(width=160)
WINDOW = 28 * HOP
AGENT_SHARE, USER_SHARE = 0.5, 0.42
USER_WEIGHT = 0.3  # of people in the mel loss: what matters of them is what they say
CRITIC_WINDOW, CRITIC_ROWS = 8 * HOP, 16
SKIPS = (0, 0, 2, 5)  # frames into the stream at which the decoder starts afresh


@dataclass(frozen=True)
class Schedule:
    """Learning rate and the shares of the time at which things change."""

    rate: float = 7e-4
    quantise: float = 0.08
    critics: float = 0.5
    freeze: float = 0.8


def plan_windows(
    clips: Clips, rng: random.Random, rows: int
) -> tuple[list[tuple[float, ...]], list[str | None], list[int]]:
    """Placements, texts (None: cut off) and kinds (0 agent, 1 person, 2 noise) of a batch."""
    placements: list[tuple[float, ...]] = []
    texts: list[str | None] = []
    kinds: list[int] = []
    for row in range(rows):
        draw = rng.random()
        kind = 0 if draw < AGENT_SHARE else 1 if draw < AGENT_SHARE + USER_SHARE else 2
        pool = clips.groups[(("agent",), ("user",), ("noise",))[kind]]
        at = int(rng.uniform(0, 0.7) * SAMPLE_RATE)
        words: list[str | None] = []
        for attempt in range(4):
            if kind == 2 and rng.random() < 0.4:
                break
            clip = rng.choice(pool)
            rate = rng.uniform(0.86, 1.16) if kind else 1.0
            length = int(clips.length[clip] / rate)
            if at + length > WINDOW and attempt == 0:
                at = int(rng.uniform(-0.3, 0.1) * SAMPLE_RATE)
            elif at + length > WINDOW:
                continue
            whole = at >= 0 and at + length <= WINDOW
            placements.append((row, clip, at, rate, 1.0, -1))
            words.append(clips.meta[clip]["text"] if whole else None)
            at += length + int(rng.uniform(0.1, 0.5) * SAMPLE_RATE)
        texts.append(None if None in words else " ".join(w for w in words if w))
        kinds.append(kind)
    return placements, texts, kinds


class Windows:
    """Codec batches, planned ahead on a thread and mixed on the device."""

    def __init__(self, clips: Clips, device: str, rows: int, seed: int) -> None:
        self._clips, self._rows = clips, rows
        self._bank = ClipBank(clips, device)
        self._plans: Queue[Any] = Queue(maxsize=8)
        Thread(target=self._plan, args=(random.Random(seed),), daemon=True).start()

    def _plan(self, rng: random.Random) -> None:
        while True:
            self._plans.put(plan_windows(self._clips, rng, self._rows))

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[Tensor, list[str | None], Tensor]]:
        """Yields audio [rows, 1, samples], texts and which rows are the agent [rows]."""
        device = self._bank.device
        while True:
            placements, texts, kinds = self._plans.get()
            table = torch.tensor(placements, dtype=torch.float64)
            clean = self._bank.place(table, self._rows, WINDOW)
            agent = torch.tensor(kinds, device=device) == 0
            level = 10 ** (torch.empty(self._rows, 1, device=device).uniform_(-3, 1) / 20)
            mixed = torch.where(agent[:, None], clean * level, augment(clean))
            yield mixed[:, None], texts, agent


class Trainer:
    """Holds codec, heads, critics and their optimisers; `step` does one batch."""

    def __init__(self, device: str, schedule: Schedule) -> None:
        self.device, self.schedule = device, schedule
        self.codec = Codec().to(device)
        c = self.codec.config
        self.semantic = CharacterHead(c.codebook_dim).to(device)
        self.total = CharacterHead(c.dim).to(device)
        self.critics = Discriminators().to(device)
        self.mel, self.envelope = MelLoss().to(device), EnvelopeLoss().to(device)
        heads = [*self.semantic.parameters(), *self.total.parameters()]
        self._weights = [*self.codec.parameters(), *heads]
        self._generator = torch.optim.AdamW(
            self._weights, schedule.rate, betas=(0.8, 0.99), weight_decay=1e-3
        )
        self._critic = torch.optim.AdamW(
            self.critics.parameters(), schedule.rate / 2, betas=(0.8, 0.99), weight_decay=1e-3
        )
        self.steps, self._quantising = 0, False

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def _fool(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One critic step on some rows; returns the generator's adversarial and feature losses."""
        at = random.randrange(0, max(1, x.shape[-1] - CRITIC_WINDOW))
        real, fake = x[..., at : at + CRITIC_WINDOW], y[..., at : at + CRITIC_WINDOW]
        with self._autocast():
            judged = self.critics(real)
            loss = discriminator_loss(judged, self.critics(fake.detach()))
        self._critic.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.critics.parameters(), 1.0)
        self._critic.step()
        self.critics.requires_grad_(False)
        with self._autocast():
            fool, match = adversarial_losses(judged, self.critics(fake))
        self.critics.requires_grad_(True)
        return fool, match

    def step(
        self, x: Tensor, texts: list[str | None], agent: Tensor, progress: float
    ) -> dict[str, float] | None:
        """Train on one batch at `progress` (0..1); every 100th step returns measurements."""
        s = self.schedule
        rate = s.rate * min(1, self.steps / 100 + 0.02)
        rate = rate * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6
        for optimiser, factor in ((self._generator, 1.0), (self._critic, 0.5)):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        bypass = progress < s.quantise
        seed = not bypass and not self._quantising
        self._quantising = not bypass
        revive = self.steps % 20 == 10 and progress < 0.75
        skip = random.choice(SKIPS)
        with self._autocast():
            y, q = self.codec(x, skip=skip, bypass=bypass, seed=seed, revive=revive)
            semantic = self.semantic(q.semantic)
            total = self.total(q.latent.transpose(1, 2))
        if progress > s.freeze:
            for branch in (self.codec.quantizer.rvq_first, self.codec.quantizer.rvq_rest):
                branch.norm.eval()
        y, target = y.float(), x[..., skip * HOP :]
        mel = self.mel(target, y, torch.where(agent, 1.0, USER_WEIGHT))
        envelope = self.envelope(target[agent], y[agent])
        heard, heard_total = character_loss(semantic, texts), character_loss(total, texts)
        loss = 15 * mel + 2 * envelope + heard + 0.5 * heard_total
        if not bypass:
            loss = loss + 0.3 * q.commitment
        if progress > s.critics:
            mine = agent.float().topk(min(CRITIC_ROWS, len(x))).indices
            fool, match = self._fool(target[mine], y[mine])
            loss = loss + min(1.0, (progress - s.critics) / 0.06) * (fool + 4 * match)
        self._generator.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._weights, 2.0)
        self._generator.step()
        self.steps += 1
        if self.steps % 100 and self.steps not in (1, 20):
            return None
        books = [float(q.codes[:, k].unique().numel()) for k in (0, 1, 7)]
        return {
            "mel": mel.item(), "envelope": envelope.item(), "ctc": heard.item(),
            "ctc_all": heard_total.item(),
            "commit": q.commitment.item(), "used0": books[0], "used1": books[1], "used7": books[2],
        }  # fmt: skip


def main(
    clips_dir: Path,
    out: Path,
    *,
    seconds: Annotated[float, typer.Option(help="training time, loading not counted")] = 300,
    rows: int = 64,
    seed: int = 0,
    start: Annotated[Path | None, typer.Option(help="folder of a codec to go on from")] = None,
) -> None:
    """Train and save `OUT/codec-0.safetensors` (fp16) and `OUT/codec_log.json` (curves)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(seed)
    random.seed(seed)
    loaded = time.monotonic()
    clips = Clips.load(clips_dir)
    schedule = Schedule()
    if start is not None:
        schedule = Schedule(rate=4e-4, quantise=0, critics=0.1, freeze=0.6)
    trainer = Trainer(device, schedule)
    if start is not None:
        trainer.codec.load_state_dict(load_parts(start, "codec", device))
        trainer.semantic.load_state_dict(load_parts(start, "semantic_head", device))
        trainer.total.load_state_dict(load_parts(start, "total_head", device))
        trainer._quantising = True
    windows = iter(Windows(clips, device, rows, seed))
    begin = time.monotonic()
    console.print(f"{len(clips.meta)} clips in {begin - loaded:.0f} s")
    log: list[dict[str, float]] = []
    while (progress := (time.monotonic() - begin) / seconds) < 1:
        measured = trainer.step(*next(windows), progress)
        if measured is not None:
            row = {"step": trainer.steps, "seconds": round(time.monotonic() - begin, 1), **measured}
            log.append(row)
            if trainer.steps % 300 == 0 or trainer.steps <= 100:
                console.print({k: round(v, 4) for k, v in row.items()})
    save_parts(trainer.codec.state_dict(), out, "codec")
    save_parts(trainer.semantic.state_dict(), out, "semantic_head")
    save_parts(trainer.total.state_dict(), out, "total_head")
    (out / "codec_log.json").write_text(json.dumps(log))
    console.print(f"{trainer.steps} steps")


if __name__ == "__main__":
    typer.run(main)
