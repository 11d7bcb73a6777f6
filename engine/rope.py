"""Rotary position embedding over interleaved pairs (Su et al., arXiv:2104.09864), in fp32.

A pair (x[2i], x[2i+1]) is one complex number, so that a rotation is one multiplication.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def frequencies(head_dim: int, max_period: float, device: torch.device | str = "cpu") -> Tensor:
    """Radians a position of each pair: [head_dim / 2], fp32. Raises ValueError if odd."""
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, not {head_dim}")
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=device)
    return torch.exp(pairs * (-math.log(max_period) * 2 / head_dim))


def rotation(positions: Tensor, frequencies: Tensor) -> Tensor:
    """The rotation of each position: int64 [n, T] -> complex64 [n, T, 1, head_dim / 2].

    The same for every layer and head: make it once a step.
    """
    angles = positions[:, :, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotates [n, T, heads, head_dim] by `rotation`, in fp32; returns x's dtype."""
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)
