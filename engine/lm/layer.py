"""What both transformers are made of: norm and gated feed-forward."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.lm.weights import Layer


class RMSNorm:
    """`rms_norm_f32` without its scale, which is folded into the matrices that follow.

    x / sqrt(mean(x^2) + eps) = sqrt(d) * x / hypot(|x|, sqrt(d * eps)): the factor sqrt(d) is
    folded in too.
    """

    def __init__(self, dim: int, device: torch.device | str, eps: float = 1e-8) -> None:
        self._floor = torch.tensor(math.sqrt(dim * eps), device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d], in fp32; returns x's dtype."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / torch.hypot(length, self._floor)).to(x.dtype)


def feed_forward(layer: Layer, x: Tensor, normed: Tensor) -> None:
    """Adds the gated feed-forward of `normed` to `x`, in place. Both are [n, d]."""
    passed, gated = torch.mm(normed, layer.gate).chunk(2, dim=-1)
    x.addmm_(F.silu(passed).mul_(gated), layer.down)
