"""Train the codec on one GPU: `python -m recipes.nano.train_codec CLIPS OUT --seconds 300`.

Two runs make a codec. The first trains all of it, without discriminators: its windows are the
agent's clean voices, people with room and noise, and noise alone. All are coded and what is said
is read off the codes; the agent and a few others are decoded. 8 % of the time passes without
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
from typing import Annotated, Any, cast

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
from recipes.nano.mixing import USER_RATE, ClipBank, augment
from recipes.nano.weights import load_parts, save_parts

console = Console(width=160)
WINDOW = 28 * HOP
Shares = tuple[float, float]  # of the windows: agent, noise; the rest is people
SHARES: Shares = (0.22, 0.06)
DECODED = 0.38  # share of the windows that are decoded: the agent, the noise and a few people
ROWS, DECODER_ROWS = 96, 64
USER_WEIGHT = 0.3  # of people in the mel loss: what matters of them is what they say
CRITIC_WINDOW, CRITIC_ROWS = 8 * HOP, 16
SKIPS = (0, 0, 2, 5)  # frames into the stream at which the decoder starts afresh
RATE = 7e-4
QUANTISE, FREEZE = 0.08, 0.8  # shares of the first run's time
CRITICS_FULL = 0.12  # share of the second run's time by which the critics have their full weight


def plan_windows(
    clips: Clips, rng: random.Random, rows: int, shares: Shares
) -> tuple[list[tuple[float, ...]], list[str | None]]:
    """Placements and texts (None: cut off) of a batch: the agent's rows, noise, people."""
    placements: list[tuple[float, ...]] = []
    texts: list[str | None] = []
    agents, noises = (round(rows * share) for share in shares)
    for row in range(rows):
        kind = 0 if row < agents else 1 if row < agents + noises else 2
        pool = clips.groups[(("agent",), ("noise",), ("user",))[kind]]
        at = int(rng.uniform(0, 0.7) * SAMPLE_RATE)
        words: list[str | None] = []
        for attempt in range(4):
            if kind == 1 and rng.random() < 0.4:
                break
            clip = rng.choice(pool)
            rate = rng.uniform(*USER_RATE) if kind else 1.0
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
    return placements, texts


class Windows:
    """Codec batches, planned ahead on a thread and mixed on the device. The agent comes first."""

    def __init__(
        self, clips: Clips, device: str, rows: int, seed: int, shares: Shares = SHARES
    ) -> None:
        self._clips, self._rows, self._shares = clips, rows, shares
        self.agents = round(rows * shares[0])
        self._bank = ClipBank(clips, device)
        self._plans: Queue[Any] = Queue(maxsize=8)
        Thread(target=self._plan, args=(random.Random(seed),), daemon=True).start()

    def _plan(self, rng: random.Random) -> None:
        try:
            while True:
                self._plans.put(plan_windows(self._clips, rng, self._rows, self._shares))
        except Exception as error:  # whoever waits for a plan must hear of it
            self._plans.put(error)

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[Tensor, list[str | None]]]:
        """Yields audio [rows, 1, samples] and texts. Raises what planning raised."""
        device = self._bank.device
        while True:
            plan = self._plans.get()
            if isinstance(plan, Exception):
                raise plan
            placements, texts = plan
            table = torch.tensor(placements, dtype=torch.float64)
            clean = self._bank.place(table, self._rows, WINDOW)
            level = 10 ** (torch.empty(self.agents, 1, device=device).uniform_(-3, 1) / 20)
            parts = [clean[: self.agents] * level]
            if self.agents < self._rows:
                parts.append(augment(clean[self.agents :]))
            yield torch.cat(parts)[:, None], texts


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


def _autocast(device: str, *, cached: bool = True) -> AbstractContextManager[Any]:
    """`cached` casts of weights would outlive a captured graph that made them."""
    cuda = device == "cuda"
    return torch.autocast(device, torch.bfloat16, enabled=cuda, cache_enabled=cached)


class Pass(nn.Module):
    """Codec and character heads on a batch, in one of the ways that training knows.

    Nothing in it depends on the data, so that it can be captured as a CUDA graph.
    """

    def __init__(
        self, codec: Codec, heads: nn.ModuleList, decoded: int, skip: int, bypass: bool
    ) -> None:
        super().__init__()
        self.codec, self.heads = codec, heads
        self._decoded, self._skip, self._bypass = decoded, skip, bypass

    def forward(
        self, x: Tensor, seed: bool = False, revive: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """[rows, 1, samples] -> sound, two characters' logits, commitment, codes."""
        y, q = self.codec(
            x, skip=self._skip, bypass=self._bypass, seed=seed, revive=revive,
            decoded=self._decoded,
        )  # fmt: skip
        semantic, total = self.heads
        return y, semantic(q.semantic), total(q.latent.transpose(1, 2)), q.commitment, q.codes


class CodecTrainer:
    """The first run: codec and character heads; `step` does one batch.

    The first `agents` rows of a batch are the agent's. On a GPU, forward and backward passes are
    CUDA graphs unless `captured` is false: launching their kernels takes longer than running them.
    """

    def __init__(self, device: str, rows: int, agents: int, *, captured: bool = True) -> None:
        self.device, self._agents = device, agents
        self._decoded = max(agents, round(rows * DECODED))
        self.codec = Codec().to(device)
        c = self.codec.config
        heads = [CharacterHead(c.codebook_dim).to(device), CharacterHead(c.dim).to(device)]
        self._heads = nn.ModuleList(heads)
        self.mel, self.envelope = MelLoss().to(device), EnvelopeLoss().to(device)
        weights = [*self.codec.parameters(), *self._heads.parameters()]
        self._optimiser = Optimiser(weights, RATE, device)
        self._weight = torch.full((self._decoded,), USER_WEIGHT, device=device)
        self._weight[:agents] = 1
        self.steps, self._quantising, self._frozen = 0, False, False
        self._capturing = captured and device == "cuda"
        self._captured: dict[tuple[int, bool, bool], nn.Module] = {}
        # one pool: a pass is over, backwards too, before the next begins
        self._pool = torch.cuda.graph_pool_handle() if self._capturing else None

    def _pass(self, x: Tensor, skip: int, bypass: bool, *, seed: bool, revive: bool) -> Any:
        """Those of `Pass`; captured unless books start or move. Valid until the next step."""
        way = Pass(self.codec, self._heads, self._decoded, skip, bypass)
        if not self._capturing or seed or revive:
            return way(x, seed, revive)
        kind = (skip, bypass, self._frozen)
        if kind not in self._captured:
            self._captured[kind] = cast(
                nn.Module,
                torch.cuda.make_graphed_callables(
                    way, (x.clone(),), allow_unused_input=True, pool=self._pool
                ),
            )
        return self._captured[kind](x)

    def step(self, x: Tensor, texts: list[str | None], progress: float) -> dict[str, float] | None:
        """Train on one batch at `progress` (0..1); every 100th step returns measurements."""
        bypass = progress < QUANTISE
        seed = not bypass and not self._quantising
        self._quantising = not bypass
        revive = self.steps % 20 == 10 and progress < 0.75
        skip = random.choice(SKIPS)
        if progress > FREEZE and not self._frozen:
            self._frozen = True
            for branch in (self.codec.quantizer.rvq_first, self.codec.quantizer.rvq_rest):
                branch.norm.eval()
        with _autocast(self.device, cached=False):
            y, semantic, total, commitment, codes = self._pass(
                x, skip, bypass, seed=seed, revive=revive
            )
        y, target = y.float(), x[: self._decoded, :, skip * HOP :]
        mel = self.mel(target, y, self._weight)
        envelope = self.envelope(target[: self._agents], y[: self._agents])
        heard, heard_total = character_loss(semantic, texts), character_loss(total, texts)
        loss = 15 * mel + 3 * envelope + 2 * heard + heard_total
        if not bypass:
            loss = loss + 0.3 * commitment
        self._optimiser.step(loss, progress, 2.0)
        self.steps += 1
        if self.steps % 100 and self.steps not in (1, 20):
            return None
        books = [float(codes[:, k].unique().numel()) for k in (0, 1, 7)]
        return {
            "mel": mel.item(), "envelope": envelope.item(), "ctc": heard.item(),
            "ctc_all": heard_total.item(),
            "commit": commitment.item(), "used0": books[0], "used1": books[1], "used7": books[2],
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

    def step(self, x: Tensor, texts: list[str | None], progress: float) -> dict[str, float] | None:
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
        loss = 15 * mel + 3 * envelope + weight * (fool + 4 * match)
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
    rows: Annotated[int | None, typer.Option(help="windows a batch")] = None,
    seed: int = 0,
    decoder_of: Annotated[Path | None, typer.Option(help="folder of the first run's codec")] = None,
    captured: Annotated[bool, typer.Option(help="passes as CUDA graphs, on a GPU")] = True,
) -> None:
    """Train and save `OUT/codec-0.safetensors` (fp16) and `OUT/codec_log.json` (curves)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(seed)
    random.seed(seed)
    loaded = time.monotonic()
    clips = Clips.load(clips_dir)
    trainer: CodecTrainer | DecoderTrainer
    if decoder_of is None:
        source = Windows(clips, device, rows or ROWS, seed)
        trainer = CodecTrainer(device, rows or ROWS, source.agents, captured=captured)
    else:
        codec = Codec()
        codec.load_state_dict(load_parts(decoder_of, "codec"))
        source = Windows(clips, device, rows or DECODER_ROWS, seed, (1.0, 0.0))
        trainer = DecoderTrainer(codec, device)
    windows = iter(source)
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
    if not trainer.steps:
        raise typer.BadParameter(f"{seconds} s are too few for a step")
    trainer.save(out)
    (out / "codec_log.json").write_text(json.dumps(log))
    console.print(f"{trainer.steps} steps")


if __name__ == "__main__":
    typer.run(main)
