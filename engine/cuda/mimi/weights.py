"""The codec's weights as the kernels want them: [out, in], padded to powers of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.mimi.tiles import wide
from engine.mimi.conv import CausalConv
from engine.mimi.transformer import Layer


def padded(tensor: Tensor, *shape: int) -> Tensor:
    """A copy with zeros behind each dimension, up to `shape`."""
    out = tensor.new_zeros(shape)
    out[tuple(slice(size) for size in tensor.shape)] = tensor
    return out


@dataclass(frozen=True, slots=True)
class Matrix:
    """A convolution's or projection's weights, repacked."""

    weight: Tensor
    """[width, window]"""
    bias: Tensor | None
    """[width] float32"""
    step: int
    """Numbers from one window to the next."""

    @classmethod
    def pack(
        cls, conv: CausalConv, inner: int, outer: int, dtype: torch.dtype, *, groups: int = 1
    ) -> Matrix:
        """Of a convolution whose outputs are `groups` times of `outer` channels each."""
        kernel, channels = conv.kernel, conv.channels
        weight = conv.weight.float().view(kernel, channels, groups, -1).permute(2, 3, 0, 1)
        weight = padded(weight, groups, outer, kernel, inner).flatten(2).flatten(0, 1)
        bias = conv.bias
        if bias is not None:
            bias = padded(bias.float().view(groups, -1), groups, outer).flatten()
        return cls(weight.to(dtype), bias, conv.stride * inner)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A transformer layer's weights, repacked."""

    norm1: tuple[Tensor, Tensor]
    """Scale and offset, [dim] float32 each."""
    in_proj: Tensor
    """[3 * heads * 2 * half, dim]: of queries, keys and values."""
    out_proj: Matrix
    norm2: tuple[Tensor, Tensor]
    linear1: Tensor
    """[features, dim]"""
    linear2: Matrix

    @classmethod
    def pack(
        cls, layer: Layer, heads: int, dim: int, half: int, dtype: torch.dtype
    ) -> LayerWeights:
        """Of a layer of `dim` channels, whose heads become 2 * half wide."""
        channels, features = layer.linear1.shape
        inner = wide(features)
        in_proj = layer.in_proj.float().t()
        query_key, value = in_proj[: 2 * channels], in_proj[2 * channels :]
        # The first numbers of all pairs, then the second ones: see `attend`.
        query_key = query_key.reshape(2, heads, -1, 2, channels).transpose(2, 3)
        query_key = padded(query_key, 2, heads, 2, half, dim).flatten(2, 3)
        value = padded(value.reshape(1, heads, -1, channels), 1, heads, 2 * half, dim)
        out_proj = layer.out_proj.float().t().reshape(channels, heads, -1)
        out_proj = padded(out_proj, dim, heads, 2 * half).flatten(1)

        def norm(weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            scale, offset = weights
            return padded(scale.float(), dim), padded(offset.float(), dim)

        return cls(
            norm1=norm(layer.norm1),
            in_proj=torch.cat([query_key, value]).flatten(0, 2).to(dtype),
            out_proj=Matrix(out_proj.to(dtype), None, out_proj.shape[1]),
            norm2=norm(layer.norm2),
            linear1=padded(layer.linear1.float().t(), inner, dim).to(dtype),
            linear2=Matrix(padded(layer.linear2.float().t(), dim, inner).to(dtype), None, inner),
        )
