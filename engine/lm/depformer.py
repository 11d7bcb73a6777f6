"""The depformer: the codes of one frame, a book after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.layer import RMSNorm, feed_forward
from engine.lm.weights import Weights
from engine.sampling import Draw


class Depformer:
    """A small transformer over codebooks, with weights of its own for each; no positions."""

    def __init__(self, config: LMConfig, weights: Weights, device: torch.device | str) -> None:
        self._weights = weights
        self._heads = config.depformer_num_heads
        self._dim = config.depformer_dim
        self._norm = RMSNorm(config.depformer_dim, device)
        self._head_norm = self._norm if config.depformer_norm is not None else None

    def __call__(self, h: Tensor, text: Tensor, draw: Draw, forced: Tensor | None) -> Tensor:
        """The agent's codes of one frame.

        h: [n, dim], the temporal transformer's output; text: [n] int64, this frame's; forced:
        [n, books] int64, below 0 where a code is to be drawn, or None. Returns [n, books] int64.
        """
        steps = self._weights.steps
        inputs = torch.mm(h, self._weights.depth_in).view(len(h), -1, self._dim).unbind(1)
        layers = [self._memory(h) for _ in steps[0].layers]
        previous = text
        codes: list[Tensor] = []
        for book, step in enumerate(steps):
            x = step.embedding.index_select(0, previous).add_(inputs[step.source])
            for layer, memory in zip(step.layers, layers, strict=True):
                x.addmm_(memory.attend(book, self._norm(x), layer.qkv), layer.out)
                feed_forward(layer, x, self._norm(x))
            if self._head_norm is not None:
                x = self._head_norm(x)
            previous = draw.audio(book, torch.mm(x, step.head))
            if forced is not None:
                previous = torch.where(forced[:, book] < 0, previous, forced[:, book])
            codes.append(previous)
        return torch.stack(codes, dim=1)

    def _memory(self, h: Tensor) -> _Memory:
        return _Memory(h.new_empty(len(self._weights.steps), len(h), 3 * self._dim), self._heads)


class _Memory:
    """Queries, keys and values of one layer in one frame: [steps, n, 3 * d]."""

    def __init__(self, qkv: Tensor, heads: int) -> None:
        self._rows = qkv.unbind(0)
        split = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 1, 3, 0, 4)
        self._query, self._keys, self._values = split.unbind(0)

    def attend(self, step: int, normed: Tensor, projection: Tensor) -> Tensor:
        """Writes a step's row, and attends from it to all rows so far: [n, d]."""
        torch.mm(normed, projection, out=self._rows[step])
        if step == 0:
            return self._rows[0][:, -normed.shape[1] :]
        past = step + 1
        return F.scaled_dot_product_attention(
            self._query[:, :, step:past], self._keys[:, :, :past], self._values[:, :, :past]
        ).flatten(1)
