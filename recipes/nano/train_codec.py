"""Train the codec on one GPU: `python -m recipes.nano.train_codec CLIPS OUT --seconds 300`.

Two runs make a codec. The first trains all of it, without discriminators: its windows are the
agent's clean voices, people with room and noise, and noise alone; 8 % of the time passes without
quantiser, the last fifth with the batch norms frozen. The second (`--decoder-of OUT`) keeps codes
as they are and trains the decoder alone, on the agent alone, against discriminators: only the agent
is ever decoded. The language model needs the codes only and may train beside it.
"""

import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
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
Shares = tuple[float, float]  # of the windows: agent, people; the rest is noise
SHARES: Shares = (0.32, 0.6)
USER_WEIGHT = 0.3  # of people in the mel loss: what matters of them is what they say
CRITIC_WINDOW, CRITIC_ROWS = 8 * HOP, 16
SKIPS = (0, 0, 2, 5)  # frames into the stream at which the decoder starts afresh


RATE = 7e-4
QUANTISE, FREEZE = 0.08, 0.8  # shares of the first run's time
CRITICS_FULL = 0.12  # share of the second run's time by which the critics have their full weight


def plan_windows(
    clips: Clips, rng: random.Random, rows: int, shares: Shares
) -> tuple[list[tuple[float, ...]], list[str | None], list[int]]:
    """Placements, texts (None: cut off) and kinds (0 agent, 1 person, 2 noise) of a batch."""
    placements: list[tuple[float, ...]] = []
    texts: list[str | None] = []
    kinds: list[int] = []
    for row in range(rows):
        draw = rng.random()
        kind = 0 if draw < shares[0] else 1 if draw < sum(shares) else 2
        pool = clips.groups[(("agent",), ("user",), ("noise",))[kind]]
        at = int(rng.uniform(0, 0.7) * SAMPLE_RATE)
        words: list[str | None] = []
        for attempt in range(4):
            if kind == 2 and rng.random() < 0.4:
                break
            clip = rng.choice(pool)
            rate = rng.uniform(0.86, 1.16) if kind else 1.0
            length = int(clips.length[clip] / rate)
            room = WINDOW - length
            if at > room and attempt == 0:
                # whole if it fits, since only then it is known what is said
                at = int(rng.uniform(0, room) if room > 0 else rng.uniform(room, 0))
            elif at > room:
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

    def __init__(
        self, clips: Clips, device: str, rows: int, seed: int, shares: Shares = SHARES
    ) -> None:
        self._clips, self._rows, self._shares = clips, rows, shares
        self._bank = ClipBank(clips, device)
        self._plans: Queue[Any] = Queue(maxsize=8)
        Thread(target=self._plan, args=(random.Random(seed),), daemon=True).start()

    def _plan(self, rng: random.Random) -> None:
        while True:
            self._plans.put(plan_windows(self._clips, rng, self._rows, self._shares))

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[Tensor, list[str | None], Tensor]]:
        """Yields audio [rows, 1, samples], texts and the numbers of the agent's rows."""
        device = self._bank.device
        while True:
            placements, texts, kinds = self._plans.get()
            table = torch.tensor(placements, dtype=torch.float64)
            clean = self._bank.place(table, self._rows, WINDOW)
            is_agent = torch.tensor(kinds) == 0
            agent = is_agent.nonzero()[:, 0].to(device, non_blocking=True)
            level = 10 ** (torch.empty(self._rows, 1, device=device).uniform_(-3, 1) / 20)
            is_agent = is_agent.to(device, non_blocking=True)
            mixed = torch.where(is_agent[:, None], clean * level, augment(clean))
            yield mixed[:, None], texts, agent


class Optimiser:
    """AdamW with a short warm-up, then half a cosine over the time there is."""

    def __init__(self, weights: list[nn.Parameter], rate: float, device: str) -> None:
        self._weights, self._rate, self._steps = weights, rate, 0
        self._adam = torch.optim.AdamW(
            weights, rate, betas=(0.8, 0.99), weight_decay=1e-3, fused=device == "cuda"
        )

    def step(self, loss: Tensor, progress: float, norm: float) -> None:
        """Descend; gradients are clipped to `norm`. `progress` is the share of the time, 0..1."""
        warm = min(1, self._steps / 100 + 0.02)
        rate = self._rate * warm * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._weights, norm)
        self._adam.step()
        self._steps += 1


def _autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


class CodecTrainer:
    """The first run: codec and character heads; `step` does one batch."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.codec = Codec().to(device)
        c = self.codec.config
        self.semantic = CharacterHead(c.codebook_dim).to(device)
        self.total = CharacterHead(c.dim).to(device)
        self.mel, self.envelope = MelLoss().to(device), EnvelopeLoss().to(device)
        heads = [*self.semantic.parameters(), *self.total.parameters()]
        self._optimiser = Optimiser([*self.codec.parameters(), *heads], RATE, device)
        self.steps, self._quantising = 0, False

    def step(
        self, x: Tensor, texts: list[str | None], agent: Tensor, progress: float
    ) -> dict[str, float] | None:
        """Train on one batch at `progress` (0..1); every 100th step returns measurements."""
        bypass = progress < QUANTISE
        seed = not bypass and not self._quantising
        self._quantising = not bypass
        revive = self.steps % 20 == 10 and progress < 0.75
        skip = random.choice(SKIPS)
        with _autocast(self.device):
            y, q = self.codec(x, skip=skip, bypass=bypass, seed=seed, revive=revive)
            semantic = self.semantic(q.semantic)
            total = self.total(q.latent.transpose(1, 2))
        if progress > FREEZE:
            for branch in (self.codec.quantizer.rvq_first, self.codec.quantizer.rvq_rest):
                branch.norm.eval()
        y, target = y.float(), x[..., skip * HOP :]
        weight = torch.full((len(x),), USER_WEIGHT, device=x.device)
        mel = self.mel(target, y, weight.index_fill(0, agent, 1.0))
        envelope = self.envelope(target[agent], y[agent]) if len(agent) else mel.new_zeros(())
        heard, heard_total = character_loss(semantic, texts), character_loss(total, texts)
        loss = 15 * mel + 2 * envelope + 2 * heard + heard_total
        if not bypass:
            loss = loss + 0.3 * q.commitment
        self._optimiser.step(loss, progress, 2.0)
        self.steps += 1
        if self.steps % 100 and self.steps not in (1, 20):
            return None
        books = [float(q.codes[:, k].unique().numel()) for k in (0, 1, 7)]
        return {
            "mel": mel.item(), "envelope": envelope.item(), "ctc": heard.item(),
            "ctc_all": heard_total.item(),
            "commit": q.commitment.item(), "used0": books[0], "used1": books[1], "used7": books[2],
        }  # fmt: skip

    def save(self, out: Path) -> None:
        save_parts(self.codec.state_dict(), out, "codec")


class DecoderTrainer:
    """The second run: what makes sound of codes, against discriminators; codes stay."""

    def __init__(self, codec: Codec, device: str) -> None:
        self.device, self.codec = device, codec.to(device).eval().requires_grad_(False)
        self._decoder = nn.ModuleList([codec.upsample, codec.decoder_transformer, codec.decoder])
        self._decoder.requires_grad_(True)
        self.critics = Discriminators().to(device)
        self.mel, self.envelope = MelLoss().to(device), EnvelopeLoss().to(device)
        self._optimiser = Optimiser(list(self._decoder.parameters()), RATE / 2, device)
        self._critic = Optimiser(list(self.critics.parameters()), RATE / 2, device)
        self.steps = 0

    def _fool(self, x: Tensor, y: Tensor, progress: float) -> tuple[Tensor, Tensor, Tensor]:
        """One critic step; returns the generator's adversarial and feature losses, and critics'."""
        at = random.randrange(0, max(1, x.shape[-1] - CRITIC_WINDOW))
        real, fake = x[..., at : at + CRITIC_WINDOW], y[..., at : at + CRITIC_WINDOW]
        with _autocast(self.device):
            judged = self.critics(real)
            loss = discriminator_loss(judged, self.critics(fake.detach()))
        self._critic.step(loss, progress, 1.0)
        self.critics.requires_grad_(False)
        with _autocast(self.device):
            fool, match = adversarial_losses(judged, self.critics(fake))
        self.critics.requires_grad_(True)
        return fool, match, loss

    def step(
        self, x: Tensor, texts: list[str | None], agent: Tensor, progress: float
    ) -> dict[str, float] | None:
        """Train on one batch at `progress` (0..1); every 100th step returns measurements."""
        skip = random.choice(SKIPS)
        with torch.no_grad():
            latent = self.codec.quantizer(self.codec.latent(x)).latent
        with _autocast(self.device):
            y = self.codec.wave(latent[..., skip:]).float()
        target = x[..., skip * HOP :]
        mel = self.mel(target, y, torch.ones(len(x), device=x.device))
        envelope = self.envelope(target, y)
        some = slice(CRITIC_ROWS)
        fool, match, judged = self._fool(target[some], y[some], progress)
        weight = min(1.0, progress / CRITICS_FULL)
        loss = 15 * mel + 2 * envelope + weight * (fool + 4 * match)
        self._optimiser.step(loss, progress, 2.0)
        self.steps += 1
        if self.steps % 100 and self.steps not in (1, 20):
            return None
        return {
            "mel": mel.item(), "envelope": envelope.item(), "match": match.item(),
            "fool": fool.item(), "critics": judged.item(),
        }  # fmt: skip

    def save(self, out: Path) -> None:
        save_parts(self.codec.state_dict(), out, "codec")


def main(
    clips_dir: Path,
    out: Path,
    *,
    seconds: Annotated[float, typer.Option(help="training time, loading not counted")] = 300,
    rows: int = 64,
    seed: int = 0,
    decoder_of: Annotated[Path | None, typer.Option(help="folder of the first run's codec")] = None,
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
    trainer: CodecTrainer | DecoderTrainer
    if decoder_of is None:
        trainer, shares = CodecTrainer(device), SHARES
    else:
        codec = Codec()
        codec.load_state_dict(load_parts(decoder_of, "codec"))
        trainer, shares = DecoderTrainer(codec, device), (1.0, 0.0)
    windows = iter(Windows(clips, device, rows, seed, shares))
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
    trainer.save(out)
    (out / "codec_log.json").write_text(json.dumps(log))
    console.print(f"{trainer.steps} steps")


if __name__ == "__main__":
    typer.run(main)
