"""The depformer: the codes of one frame, a book after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.layer import RMSNorm, feed_forward
from engine.lm.weights import DepthStep, Layer, Weights
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
        inputs = (h @ self._weights.depth_in).view(len(h), -1, self._dim).unbind(1)
        memory = h.new_empty(len(steps[0].layers), len(steps), len(h), 3 * self._dim)
        previous = text
        codes: list[Tensor] = []
        for book, step in enumerate(steps):
            x = step.embedding.index_select(0, previous).add_(inputs[step.source])
            previous = draw.audio(book, self._logits(step, x, memory[:, : book + 1]))
            if forced is not None:
                previous = torch.where(forced[:, book] < 0, previous, forced[:, book])
            codes.append(previous)
        return torch.stack(codes, dim=1)

    def _logits(self, step: DepthStep, x: Tensor, memory: Tensor) -> Tensor:
        """One step. x: [n, d], overwritten; memory: [layers, steps so far, n, 3 * d]."""
        for layer, seen in zip(step.layers, memory, strict=True):
            x.addmm_(self._attend(layer, self._norm(x), seen), layer.out)
            feed_forward(layer, x, self._norm(x))
        return (x if self._head_norm is None else self._head_norm(x)) @ step.head

    def _attend(self, layer: Layer, normed: Tensor, seen: Tensor) -> Tensor:
        """Writes the newest of `seen` [steps, n, 3 * d] and attends to all: [n, d]."""
        torch.mm(normed, layer.qkv, out=seen[-1])
        if len(seen) == 1:
            return seen[0, :, 2 * self._dim :]
        split = seen.view(len(seen), len(normed), 3, self._heads, -1)
        query, keys, values = split.permute(2, 1, 3, 0, 4)
        return F.scaled_dot_product_attention(query[:, :, -1:], keys, values).flatten(1)
