"""Conversations as tokens: planned on the CPU, mixed and encoded on the training device."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from recipes.nano.blocks import Coder
from recipes.nano.clips import SAMPLE_RATE, Clips
from recipes.nano.codec import HOP, Codec
from recipes.nano.dialogue import VOICE_MOST, Batch, Planner, plan_batch
from recipes.nano.mixing import ClipBank, augment
from recipes.nano.tokenizer import PAD, TextTokenizer

ECHO_SHARE = 0.35
ECHO_DB = (-40.0, -20.0)


@dataclass(frozen=True)
class PromptCodes:
    """The constant frames of a prompt, eight codes each: the agent's silence, the user's tone."""

    silence: Tensor
    user: Tensor

    @classmethod
    @torch.no_grad()
    def measure(cls, codec: Codec, device: str, seconds: float = 4.0) -> "PromptCodes":
        """Encode silence and a 440 Hz tone and keep the codes once they have settled."""
        n = int(seconds * SAMPLE_RATE) // HOP * HOP
        t = torch.arange(n, device=device) / SAMPLE_RATE
        tone = 0.5 * torch.sin(2 * torch.pi * 440 * t)
        codes = codec.encode(torch.stack([torch.zeros_like(tone), tone])[:, None])
        settled = codes[:, :, -25:].mode(-1).values.cpu()
        return cls(settled[0], settled[1])


@dataclass
class Tokens:
    """Rows of frames: text [n, t], agent and user [n, 8, t], labels [n, t, 4], speech [n, t].

    `prompt` [n] is how many frames at the start belong to the prompt.
    """

    text: Tensor
    agent: Tensor
    user: Tensor
    labels: Tensor
    speech: Tensor
    prompt: Tensor


class Plans(IterableDataset[Batch]):
    """Endless planned batches; each worker has its own seed."""

    def __init__(self, clips: Clips, tokenizer: Path, rows: int, frames: int, seed: int) -> None:
        super().__init__()
        self._clips, self._tokenizer = clips, tokenizer
        self._rows, self._frames, self._seed = rows, frames, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(self._seed + (worker.id if worker else 0))
        tokens = TextTokenizer(self._tokenizer)
        planner = Planner(self._clips, tokens)
        while True:
            yield plan_batch(planner, rng, self._rows, self._frames)


def loader(plans: Plans, workers: int) -> Iterator[Batch]:
    """Iterate plans made in worker processes (or here, with none)."""
    ahead = 4 if workers else None
    return iter(DataLoader(plans, batch_size=None, num_workers=workers, prefetch_factor=ahead))


class Renderer:
    """Makes tokens of planned conversations with the trained codec."""

    def __init__(self, bank: ClipBank, codec: Codec, codes: PromptCodes) -> None:
        half = torch.float16 if bank.device.type == "cuda" else torch.float32
        self._bank, self._encode = bank, Coder(codec, half)
        self._silence = codes.silence.to(bank.device)
        self._user = codes.user.to(bank.device)

    @torch.no_grad()
    def __call__(self, batch: Batch, frames: int) -> Tokens:
        """Mix, encode and put the prompt in front; rows are cut to `frames` frames."""
        device = self._bank.device
        rows, planned = batch.text.shape
        agent = self._bank.place(batch.agent, rows, planned * HOP)
        user = augment(self._bank.place(batch.user, rows, planned * HOP))
        level = 10 ** (torch.empty(rows, 1, device=device).uniform_(*ECHO_DB) / 20)
        echoes = (torch.rand(rows, 1, device=device) < ECHO_SHARE).float() * level
        late = int(random.uniform(0.08, 0.24) * SAMPLE_RATE)
        user = user + echoes * F.pad(agent, (late, 0))[:, : user.shape[1]]
        voice = self._bank.place(batch.voice_prompt, rows, VOICE_MOST * HOP)
        agent_codes, user_codes, voice_codes = map(self._encode, (agent, user, voice))
        loud = agent.view(rows, planned, HOP).abs().amax(-1) > 1e-3
        near = F.max_pool1d(loud.float()[:, None], 7, 1, 3)[:, 0] > 0
        text, labels, prompts, prompt, voiced = (
            x.to(device, non_blocking=True)
            for x in (
                batch.text, batch.labels, batch.prompts, batch.prompt_frames, batch.voice_frames
            )
        )  # fmt: skip
        column = torch.arange(frames, device=device)[None]
        source = column - prompt[:, None]
        said = (source >= 0) & (source < planned)
        source = source.clamp(0, planned - 1)
        heard, silence = source[:, None].expand(-1, 8, -1), self._silence[None, :, None]
        spoken = F.pad(voice_codes, (0, max(0, frames - VOICE_MOST)))[..., :frames]
        before = torch.where((column < voiced[:, None])[:, None], spoken, silence)
        forced = F.pad(prompts, (0, max(0, frames - prompts.shape[1])), value=PAD)[:, :frames]
        return Tokens(
            torch.where(said, text.gather(1, source), forced),
            torch.where(said[:, None], agent_codes.gather(2, heard), before),
            torch.where(said[:, None], user_codes.gather(2, heard), self._user[None, :, None]),
            torch.where(
                said[..., None],
                labels.long().gather(1, source[..., None].expand(-1, -1, labels.shape[2])), -1,
            ),
            near.gather(1, source) & said,
            prompt,
        )  # fmt: skip


class Pool:
    """A ring of token rows on the device to draw training batches from."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._store: list[Tensor] | None = None
        self.made = 0

    @staticmethod
    def _pack(t: Tokens) -> list[Tensor]:
        small = torch.int16
        return [
            t.text.to(small), t.agent.to(small), t.user.to(small), t.labels.to(small),
            t.speech, t.prompt.to(small),
        ]  # fmt: skip

    def add(self, tokens: Tokens) -> None:
        packed = self._pack(tokens)
        rows = len(packed[0])
        if self._store is None:
            self._store = [x.new_zeros((self._capacity, *x.shape[1:])) for x in packed]
        at = (torch.arange(rows, device=packed[0].device) + self.made) % self._capacity
        for store, x in zip(self._store, packed, strict=True):
            store[at] = x
        self.made += rows

    def draw(self, rows: int) -> Tokens:
        """A random batch, in int64."""
        if self._store is None:
            raise RuntimeError("draw from an empty pool")
        filled = min(self.made, self._capacity)
        pick = torch.randint(0, filled, (rows,), device=self._store[0].device)
        text, agent, user, labels, speech, prompt = (s[pick] for s in self._store)
        return Tokens(text.long(), agent.long(), user.long(), labels.long(), speech, prompt.long())
