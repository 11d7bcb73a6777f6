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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
from recipes.nano.dialogue import WORDS
from recipes.nano.lm import LanguageModel, LmConfig, delayed, grid_inputs
from recipes.nano.mixing import ClipBank
from recipes.nano.tokenizer import PAD, TextTokenizer
from recipes.nano.weights import load_parts, save_parts

console = Console(width=170)
RATE, WARMUP = 1.2e-3, 400
WORD_WEIGHT, PAD_WEIGHT = 2.0, 0.5  # at first; at the end all text counts the same
EVEN_FROM, EVEN_AT = 0.4, 0.8  # shares of the time between which these weights become one
CHECKPOINTS = (0.5, 0.75, 1.0)  # shares of the time; the last is the end
AGENT_NOISE, USER_MASK, FRAME_MASK, BOOK_DROP = 0.03, 0.1, 0.05, 0.3
DEPTH_SHARE = 0.4
FRESH_SHARE = 0.5
LABEL_SIZES = (len(domain.INTENTS), domain.NO_NUMBER + 1, domain.NO_NUMBER + 1, len(WORDS))


@dataclass(frozen=True)
class Stage:
    """Conversations of `frames` frames (prompt included), `rows` a batch, until `until` (0..1)."""

    frames: int
    rows: int
    until: float
    capacity: int


STAGES = (Stage(260, 96, 0.65, 36_000), Stage(1000, 24, 1.0, 9_000))
RENDER_ROWS = (64, 16)
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


class CapturedStep:
    """A training step as one CUDA graph: launching its kernels one by one takes longer than they.

    `descend` reads what changes between steps from tensors, and is run a few times on the first
    tokens before it is captured. All later tokens must have their shapes.
    """

    def __init__(self, descend: Callable[[Tokens], Losses], first: Tokens) -> None:
        self._tokens = Tokens(*(x.clone() for x in vars(first).values()))
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                descend(self._tokens)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._losses = descend(self._tokens)

    def __call__(self, tokens: Tokens) -> Losses:
        """Valid until the next step."""
        for mine, given in zip(vars(self._tokens).values(), vars(tokens).values(), strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._losses


class LmTrainer:
    """The model with its training-only label head, and its optimiser.

    On a GPU, steps are `captured` unless that is not wished. Compiled layers made them no faster.
    """

    def __init__(self, config: LmConfig, device: str, *, captured: bool = True) -> None:
        self.config, self.device = config, device
        self.model = LanguageModel(config).to(device)
        self.label_head = nn.Linear(config.dim, sum(LABEL_SIZES)).to(device)
        weights = [*self.model.parameters(), *self.label_head.parameters()]
        self._weights = weights
        self._even = torch.zeros((), device=device)
        decay = [p for p in weights if p.dim() == 2]
        rest = [p for p in weights if p.dim() != 2]
        cuda = device == "cuda"
        self._optimiser = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
            # a tensor, as `_even`: a captured step reads it anew
            torch.tensor(RATE, device=device), betas=(0.9, 0.95), fused=cuda, capturable=cuda,
        )  # fmt: skip
        self.steps = 0
        self._captured: dict[torch.Size, CapturedStep] | None = None
        if captured and cuda:
            self._captured = {}

    def load(self, folder: Path) -> None:
        """Go on from saved weights; a label head that was not saved starts afresh."""
        self.model.load_state_dict(load_parts(folder, "lm", self.device))
        if (folder / "label_head-0.safetensors").exists():
            self.label_head.load_state_dict(load_parts(folder, "label_head", self.device))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def _roughen(self, agent: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        """Wrong agent codes, masked user codes and columns, rows that hear few acoustic books."""
        card = self.config.card
        noise = torch.rand(agent.shape, device=agent.device)
        wrong = torch.randint(0, card, agent.shape, device=agent.device)
        agent = torch.where((noise < AGENT_NOISE) & (agent != card), wrong, agent)
        user = user.masked_fill(torch.rand(user.shape, device=user.device) < USER_MASK, card)
        rows, _, columns = user.shape
        deaf = torch.rand(rows, 1, columns, device=user.device) < FRAME_MASK
        user = user.masked_fill(deaf, card)
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
        pad, word = (w + (1 - w) * self._even for w in (PAD_WEIGHT, WORD_WEIGHT))
        weight = torch.where(target == PAD, pad, word) * on_time
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

        right, spoken_text = logits.argmax(-1) == target, (target != PAD) & on_time
        silent = (target == PAD) & on_time
        return Losses(
            text, by_book, labels, (right & spoken_text).sum() / spoken_text.sum().clamp(min=1),
            (right & silent).sum() / silent.sum().clamp(min=1), hits,
        )  # fmt: skip

    def _descend(self, tokens: Tokens) -> Losses:
        with self._autocast():
            losses = self.losses(tokens)
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.total)
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimiser.step()
        return losses

    def step(self, tokens: Tokens, progress: float) -> Losses:
        """Train on one batch at `progress` (0..1); a captured step's losses last to the next."""
        rate = RATE * min(1, self.steps / WARMUP + 0.01)
        rate = rate * (0.5 + 0.5 * math.cos(math.pi * min(1, progress))) + 2e-6
        for group in self._optimiser.param_groups:
            group["lr"].fill_(rate)
        self._even.fill_(min(1.0, max(0.0, (progress - EVEN_FROM) / (EVEN_AT - EVEN_FROM))))
        self.steps += 1
        if self._captured is None:
            return self._descend(tokens)
        shape = tokens.text.shape
        if shape not in self._captured:
            self._captured[shape] = CapturedStep(self._descend, tokens)
        return self._captured[shape](tokens)


class Balance:
    """Decides whether to make new conversations or to train, by what both cost on this machine.

    The first calls of each kind are timed with the device awaited; after that nothing waits.
    """

    TIMED = (3, 23)  # these calls of a kind

    def __init__(self, device: str, share: float) -> None:
        self._device, self._share = device, share
        self._calls = {"make": 0, "train": 0}
        self._took = {"make": 0.0, "train": 0.0}
        self.cost = {"make": 0.0, "train": 0.0}

    def wants_more(self) -> bool:
        """Is less than the wished share of the time spent on new conversations?"""
        spent = {kind: n * self.cost[kind] for kind, n in self._calls.items()}
        return spent["make"] <= self._share * sum(spent.values())

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        first, last = self.TIMED
        n = self._calls[kind]
        if not first <= n < last:
            yield
        else:
            self._wait()
            begin = time.monotonic()
            yield
            self._wait()
            self._took[kind] += time.monotonic() - begin
            self.cost[kind] = self._took[kind] / (n + 1 - first)
        self._calls[kind] += 1

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def _report(losses: Losses) -> dict[str, Any]:
    return {
        "text": round(losses.text.item(), 4), "words": round(losses.words.item(), 4),
        "pad": round(losses.padding.item(), 5), "labels": round(losses.labels.item(), 4),
        "heard": [round(x.item(), 3) for x in losses.label_hits],
        "codes": [round(x, 2) for x in losses.codes.tolist()],
    }  # fmt: skip


class Source:
    """The conversations of one stage: planned ahead, made on demand, drawn many times."""

    def __init__(self, stage: Stage, plans: Plans, render: Renderer, workers: int) -> None:
        self.stage, self._render = stage, render
        self._plans = loader(plans, workers)
        self.pool = Pool(stage.capacity)

    def make(self) -> None:
        self.pool.add(self._render(next(self._plans), self.stage.frames))

    def draw(self) -> Tokens:
        return self.pool.draw(self.stage.rows)


def _save(trainer: LmTrainer, codes: PromptCodes, log: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    save_parts(trainer.model.state_dict(), out, "lm")
    save_parts(trainer.label_head.state_dict(), out, "label_head")
    save_file({"silence": codes.silence, "user": codes.user}, out / "prompt_codes.safetensors")
    (out / "lm_log.json").write_text(json.dumps(log))


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
    captured: Annotated[bool, typer.Option(help="steps as CUDA graphs, on a GPU")] = True,
) -> None:
    """Train and save `OUT/lm-*.safetensors` (fp16) and `OUT/lm_log.json` (curves).

    `OUT/50` and `OUT/75` hold the model as it was after that share of the time (in per cent).
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(seed)
    random.seed(seed)
    clips = Clips.load(clips_dir)
    stages = [Stage(s.frames, 2, s.until, 64) for s in STAGES] if tiny else list(STAGES)
    codec = Codec().to(device).eval()
    codec.load_state_dict(load_parts(codec_dir, "codec", device))
    codes = PromptCodes.measure(codec, device)
    render = Renderer(ClipBank(clips, device), codec, codes)
    config = LmConfig(text_card=TextTokenizer(tokenizer).card)
    trainer = LmTrainer(config, device, captured=captured)
    if start is not None:
        trainer.load(start)
    sources = []
    for i, (s, rows) in enumerate(zip(stages, (2, 2) if tiny else RENDER_ROWS, strict=True)):
        plans = Plans(clips, tokenizer, rows, s.frames - PROMPT_LEAST, seed * 1000 + i * 100)
        sources.append(Source(s, plans, render, workers // 2 if workers > 1 else 0))
    balances = [Balance(device, FRESH_SHARE) for _ in stages]
    checkpoints = list(CHECKPOINTS)
    log: list[dict[str, Any]] = []
    begin = time.monotonic()
    while (progress := (time.monotonic() - begin) / seconds) < 1:
        if progress >= checkpoints[0]:
            _save(trainer, codes, log, out / f"{checkpoints.pop(0) * 100:.0f}")
        stage = next(i for i, s in enumerate(stages) if progress < s.until)
        source, balance = sources[stage], balances[stage]
        if source.pool.made < source.stage.rows * (2 if tiny else 8) or balance.wants_more():
            with balance.timed("make"):
                source.make()
            continue
        with balance.timed("train"):
            losses = trainer.step(source.draw(), progress)
        if trainer.steps % 100 == 0 or trainer.steps in (1, 10):
            row = {
                "step": trainer.steps, "seconds": round(time.monotonic() - begin, 1),
                "made": [x.pool.made for x in sources], **_report(losses),
            }  # fmt: skip
            log.append(row)
            if trainer.steps % 300 == 0 or trainer.steps <= 100:
                console.print(row)
    if not trainer.steps:
        raise typer.BadParameter(f"{seconds} s are too few for a step")
    _save(trainer, codes, log, out)
    made = [x.pool.made for x in sources]
    costs = [{k: round(v, 4) for k, v in b.cost.items()} for b in balances]
    console.print(f"{trainer.steps} steps, {made} conversations, {costs} s each")
    for worker in mp.active_children():
        worker.kill()  # they would plan on, and hold the terminal
    os._exit(0)


if __name__ == "__main__":
    typer.run(main)
