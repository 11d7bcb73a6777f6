"""Train the language model: `python -m recipes.nano.train_lm CLIPS CODEC TOKENIZER OUT`.

Conversations are mixed and encoded on the fly, about half of the time; each is used several times.
The first part of the time goes to short conversations, the rest to ones as long as the context.
"""

import json
import math
import multiprocessing as mp
import os
import random
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

from recipes.nano import domain
from recipes.nano.clips import Clips
from recipes.nano.codec import Codec
from recipes.nano.conversations import Plans, Pool, PromptCodes, Renderer, Tokens, loader
from recipes.nano.lm import LanguageModel, LmConfig, delayed, grid_inputs
from recipes.nano.mixing import ClipBank
from recipes.nano.tokenizer import PAD, TextTokenizer
from recipes.nano.weights import load_parts, save_parts

console = Console(width=170)
RATE, WARMUP = 1.2e-3, 400
WORD_WEIGHT, PAD_WEIGHT = 2.0, 0.5
AGENT_NOISE, USER_MASK, BOOK_DROP = 0.03, 0.07, 0.3
DEPTH_SHARE = 0.4
FRESH_SHARE = 0.45
LABEL_SIZES = (len(domain.INTENTS), domain.NO_NUMBER + 1, domain.NO_NUMBER + 1)


@dataclass(frozen=True)
class Stage:
    """Conversations of `frames` frames (prompt included), `rows` a batch, until `until` (0..1)."""

    frames: int
    rows: int
    until: float
    capacity: int


STAGES = (Stage(260, 64, 0.6, 32_000), Stage(1000, 16, 1.0, 8_000))
PROMPT_LEAST = 40


@dataclass
class Losses:
    """Scalars of one batch; `codes` [8] by codebook; accuracies of words, padding and labels."""

    text: Tensor
    codes: Tensor
    labels: Tensor
    words: Tensor
    padding: Tensor
    label_hits: list[Tensor]

    @property
    def total(self) -> Tensor:
        return self.text + (2 * self.codes[0] + self.codes[1:].sum()) / 9 + 0.3 * self.labels


class LmTrainer:
    """The model with its training-only label head, and its optimiser."""

    def __init__(self, config: LmConfig, device: str) -> None:
        self.config, self.device = config, device
        self.model = LanguageModel(config).to(device)
        self.label_head = nn.Linear(config.dim, sum(LABEL_SIZES)).to(device)
        weights = [*self.model.parameters(), *self.label_head.parameters()]
        self._weights = weights
        decay = [p for p in weights if p.dim() == 2]
        rest = [p for p in weights if p.dim() != 2]
        self._optimiser = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
            RATE, betas=(0.9, 0.95), fused=device == "cuda",
        )  # fmt: skip
        self.steps = 0

    def load(self, folder: Path) -> None:
        """Go on from saved weights; a label head that was not saved starts afresh."""
        self.model.load_state_dict(load_parts(folder, "lm", self.device))
        if (folder / "label_head-0.safetensors").exists():
            self.label_head.load_state_dict(load_parts(folder, "label_head", self.device))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def _roughen(self, agent: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        """Wrong agent codes, masked user codes, and rows that hear only some acoustic books."""
        card = self.config.card
        noise = torch.rand(agent.shape, device=agent.device)
        wrong = torch.randint(0, card, agent.shape, device=agent.device)
        agent = torch.where((noise < AGENT_NOISE) & (agent != card), wrong, agent)
        user = user.masked_fill(torch.rand(user.shape, device=user.device) < USER_MASK, card)
        rows = len(user)
        keep = torch.randint(1, 8, (rows, 1, 1), device=user.device)
        drop = torch.rand(rows, 1, 1, device=user.device) < BOOK_DROP
        book = torch.arange(8, device=user.device)[None, :, None]
        return agent, user.masked_fill(drop & (book >= keep), card)

    def losses(self, t: Tokens) -> Losses:
        c = self.config
        agent, user = delayed(t.agent, 1, c.card), delayed(t.user, 1, c.card)
        text_in, audio_in = grid_inputs(t.text, *self._roughen(agent, user), c)
        h = self.model.hidden(text_in[:, :-1], audio_in[:, :, :-1])
        target, codes = t.text[:, 1:], agent[:, :, 1:]
        column = torch.arange(1, t.text.shape[1], device=h.device)[None]
        prompt = t.prompt.clamp(min=1)[:, None]
        on_time, one_late = column >= prompt, column - 1 >= prompt

        logits = self.model.text_linear(h).float()
        weight = torch.where(target == PAD, PAD_WEIGHT, WORD_WEIGHT) * on_time
        text = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        text = (text * weight.flatten()).sum() / weight.sum()

        guesses = self.label_head(h).float().split(LABEL_SIZES, -1)
        labels, hits = torch.zeros((), device=h.device), []
        for i, guess in enumerate(guesses):
            truth = t.labels[:, :-1, i]
            seen = (truth >= 0).sum().clamp(min=1)
            loss = F.cross_entropy(
                guess.flatten(0, 1), truth.flatten(), ignore_index=-1, reduction="sum"
            )
            labels = labels + loss / seen
            hits.append(((guess.argmax(-1) == truth) & (truth >= 0)).sum() / seen)

        priority = (
            t.speech[:, 1:].float() + torch.rand(column.shape[1], device=h.device)[None] * 0.9
        )
        priority = torch.where(one_late, priority + torch.rand_like(priority) * 0.05, -1.0)
        pick = priority.flatten().topk(int(priority.numel() * DEPTH_SHARE)).indices
        spoken = codes.transpose(1, 2).flatten(0, 1)[pick]
        depth = self.model.depth(h.flatten(0, 1)[pick], target.flatten()[pick], spoken)
        unmasked = torch.where(one_late.flatten()[pick][:, None], spoken, -1)
        by_book = torch.stack([
            F.cross_entropy(depth[:, k].float(), unmasked[:, k], ignore_index=-1)
            for k in range(c.dep_q)
        ])  # fmt: skip

        right, word = logits.argmax(-1) == target, (target != PAD) & on_time
        silent = (target == PAD) & on_time
        return Losses(
            text, by_book, labels, (right & word).sum() / word.sum().clamp(min=1),
            (right & silent).sum() / silent.sum().clamp(min=1), hits,
        )  # fmt: skip

    def step(self, tokens: Tokens, progress: float) -> Losses:
        rate = RATE * min(1, self.steps / WARMUP + 0.01)
        rate = rate * (0.5 + 0.5 * math.cos(math.pi * min(1, progress))) + 2e-6
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        with self._autocast():
            losses = self.losses(tokens)
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.total)
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimiser.step()
        self.steps += 1
        return losses


def _report(losses: Losses) -> dict[str, Any]:
    return {
        "text": round(losses.text.item(), 4), "words": round(losses.words.item(), 4),
        "pad": round(losses.padding.item(), 5), "labels": round(losses.labels.item(), 4),
        "heard": [round(x.item(), 3) for x in losses.label_hits],
        "codes": [round(x, 2) for x in losses.codes.tolist()],
    }  # fmt: skip


def main(
    clips_dir: Path,
    codec_dir: Path,
    tokenizer: Path,
    out: Path,
    *,
    seconds: Annotated[float, typer.Option(help="training time, loading not counted")] = 300,
    workers: int = 12,
    seed: int = 1,
    start: Annotated[Path | None, typer.Option(help="folder of a model to go on from")] = None,
    tiny: Annotated[bool, typer.Option(help="small batches, to try it on a CPU")] = False,
) -> None:
    """Train and save `OUT/lm-*.safetensors` (fp16) and `OUT/lm_log.json` (curves)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(seed)
    random.seed(seed)
    clips = Clips.load(clips_dir)
    stages = [Stage(s.frames, 2, s.until, 64) for s in STAGES] if tiny else list(STAGES)
    feeds = []
    for i, s in enumerate(stages):
        plans = Plans(clips, tokenizer, s.rows, s.frames - PROMPT_LEAST, seed * 1000 + i * 100)
        feeds.append(loader(plans, workers // 2 if workers > 1 else 0))
    codec = Codec().to(device).eval()
    codec.load_state_dict(load_parts(codec_dir, "codec", device))
    codes = PromptCodes.measure(codec, device)
    render = Renderer(ClipBank(clips, device), codec, codes)
    trainer = LmTrainer(LmConfig(text_card=TextTokenizer(tokenizer).card), device)
    if start is not None:
        trainer.load(start)
    pools = [Pool(s.capacity) for s in stages]
    spent = {"fresh": 0.0, "train": 0.0}
    log: list[dict[str, Any]] = []

    def timed(kind: str, begin: float) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        spent[kind] += time.monotonic() - begin

    begin = time.monotonic()
    while (progress := (time.monotonic() - begin) / seconds) < 1:
        stage = next(i for i, s in enumerate(stages) if progress < s.until)
        s, pool = stages[stage], pools[stage]
        least = s.rows * (2 if tiny else 12)
        share = spent["fresh"] / (spent["fresh"] + spent["train"] + 1e-9)
        at = time.monotonic()
        if pool.made < least or share < FRESH_SHARE:
            pool.add(render(next(feeds[stage]), s.frames))
            timed("fresh", at)
            continue
        losses = trainer.step(pool.draw(s.rows), progress)
        if trainer.steps % 100 == 0 or trainer.steps in (1, 10):
            row = {
                "step": trainer.steps, "seconds": round(at - begin, 1),
                "made": [p.made for p in pools], **_report(losses),
            }  # fmt: skip
            log.append(row)
            if trainer.steps % 300 == 0 or trainer.steps <= 100:
                console.print(row)
        timed("train", at)
    save_parts(trainer.model.state_dict(), out, "lm")
    save_parts(trainer.label_head.state_dict(), out, "label_head")
    save_file({"silence": codes.silence, "user": codes.user}, out / "prompt_codes.safetensors")
    (out / "lm_log.json").write_text(json.dumps(log))
    console.print(f"{trainer.steps} steps, {[p.made for p in pools]} conversations, {spent}")
    for worker in mp.active_children():
        worker.kill()  # they would plan on, and hold the terminal
    os._exit(0)


if __name__ == "__main__":
    typer.run(main)
