"""The temporal transformer: one position a frame, over a ring of past frames."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.layer import RMSNorm, feed_forward
from engine.lm.weights import Weights
from engine.ring import RingKV, Span
from engine.rope import frequencies, rotate, rotation


class Temporal:
    """From the tokens of a column to the state that text and depformer read."""

    def __init__(self, config: LMConfig, weights: Weights, device: torch.device | str) -> None:
        self._weights = weights
        self._split = (3, config.num_heads, config.head_dim)
        self._norm = RMSNorm(config.dim, device)
        self._frequencies = frequencies(config.head_dim, config.max_period, device)

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, channels] int64 -> [n, dim]: the sum of the channels' embeddings."""
        rows = tokens + self._weights.embedding_offsets
        return torch.nn.functional.embedding(rows, self._weights.embedding).sum(1)

    def __call__(self, ring: RingKV, span: Span, x: Tensor) -> Tensor:
        """Appends the span's positions to the ring.

        x: [n * T, dim], overwritten. Returns the normed output [n * T, dim], but for the scale
        that is folded into its readers.
        """
        turn = rotation(span.positions, self._frequencies)
        shape = (*span.positions.shape, *self._split)
        for index, layer in enumerate(self._weights.layers):
            qkv = torch.mm(self._norm(x), layer.qkv).view(shape)
            turned = qkv[:, :, :2]
            turned.copy_(rotate(turned.flatten(2, 3), turn).view_as(turned))
            heard = ring.attend(index, span, qkv[:, :, 0], qkv[:, :, 1:])
            x.addmm_(heard.flatten(0, 1), layer.out)
            feed_forward(layer, x, self._norm(x))
        return self._norm(x)
