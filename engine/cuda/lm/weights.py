"""The language model's weights as the kernels want them: [out, in], padded to whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.weights import Layer, Weights

_MULTIPLE = 32
"""Of which every width is a multiple."""
_MIN_HEAD = 16
FP8_MAX = 448.0
"""The greatest number in e4m3."""


def _up(value: int, multiple: int = _MULTIPLE) -> int:
    return -(-value // multiple) * multiple


def power_of_two(value: int) -> int:
    """The least power of two that isn't below `value`."""
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer's sizes, true and padded."""

    true_width: int
    heads: int
    true_head: int
    true_hidden: int

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return _up(self.true_width)

    @property
    def head(self) -> int:
        """Of a head: a power of two."""
        return max(_MIN_HEAD, power_of_two(self.true_head))

    @property
    def attention(self) -> int:
        """Of all heads."""
        return self.heads * self.head

    @property
    def hidden(self) -> int:
        """Of the gated feed-forward."""
        return _up(self.true_hidden)

    @classmethod
    def temporal(cls, config: LMConfig) -> Shape:
        """The temporal transformer's."""
        return cls(config.dim, config.num_heads, config.head_dim, config.hidden)

    @classmethod
    def depth(cls, config: LMConfig) -> Shape:
        """The depformer's."""
        heads = config.depformer_num_heads
        head = config.depformer_dim // heads
        return cls(config.depformer_dim, heads, head, config.depformer_hidden)


@dataclass(frozen=True, slots=True)
class CudaLayer:
    """A transformer layer; see `Shape` for the sizes."""

    qkv: Tensor
    """[3 * attention, width]"""
    out: Tensor
    """[width, attention]"""
    gate: Tensor
    """[2 * hidden, width]: gate and up rows in turn."""
    down: Tensor
    """[width, hidden]"""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A weight in e4m3, times one number."""

    values: Tensor
    """[out, in] float8_e4m3fn"""
    scale: Tensor
    """[] float32: of the product of `values` with quantised inputs."""

    @classmethod
    def of(cls, weight: Tensor, input_scale: float) -> Fp8Matrix:
        """input_scale: what one unit of a quantised input stands for."""
        unit = weight.abs().amax().float().clamp(min=1e-12) / FP8_MAX
        return cls((weight.float() / unit).to(torch.float8_e4m3fn), unit * input_scale)


@dataclass(frozen=True, slots=True)
class Fp8Layer:
    """A temporal layer in FP8. Inputs are quantised by numbers that follow from the weights."""

    qkv: Fp8Matrix
    out: Fp8Matrix
    gate: Fp8Matrix
    down: Fp8Matrix
    heard_scale: float
    """What a unit of the attention's output stands for: it is a mean of values, which have a
    bound, and so has its unit."""
    hidden_scale: float
    """What a unit of the gated hidden state stands for: it saturates far above what is likely."""


@dataclass(frozen=True, slots=True)
class CudaDepthStep:
    """The depformer at one codebook."""

    source: int
    layers: tuple[CudaLayer, ...]
    embedding: Tensor
    """[tokens, width]"""
    head: Tensor
    """[card, width], padded to whole tiles with zeros."""


@dataclass(frozen=True, slots=True)
class CudaWeights:
    """All that a step reads."""

    embedding: Tensor
    """[rows, width]"""
    offsets: Tensor
    """[channels] int32: the row of each channel's token 0; the row before it is zeros."""
    layers: tuple[CudaLayer | Fp8Layer, ...]
    text_head: Tensor
    """[text_card, width], padded to whole tiles."""
    depth_in: Tensor
    """[sources * depth width, width]"""
    steps: tuple[CudaDepthStep, ...]
    kv_scale: Tensor
    """[layers, 2, heads] float32: of keys and values in FP8. No key or value can exceed 448 of
    them: a normed input has length 1, so none exceeds the length of the rows that make it."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, shared ones counted once."""
        tensors = [self.embedding, self.offsets, self.text_head, self.depth_in, self.kv_scale]
        for step in self.steps:
            tensors += [step.embedding, step.head]
        for layers in (self.layers, *(step.layers for step in self.steps)):
            for layer in layers:
                for matrix in (layer.qkv, layer.out, layer.gate, layer.down):
                    tensors.append(matrix if isinstance(matrix, Tensor) else matrix.values)
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def pack(config: LMConfig, weights: Weights, *, fp8: bool = False) -> CudaWeights:
    """Lays the specification's weights out for the kernels, on their device and in their type.

    fp8: the temporal layers in e4m3.
    """
    temporal, depth = Shape.temporal(config), Shape.depth(config)
    layers: list[CudaLayer | Fp8Layer] = []
    scales: list[Tensor] = []
    for given in weights.layers:
        layer = _layer(given, temporal)
        scales.append(_kv_scale(layer.qkv, temporal))
        layers.append(_fp8_layer(layer, temporal, scales[-1]) if fp8 else layer)
    packed: dict[int, CudaLayer] = {}

    def shared(layer: Layer) -> CudaLayer:
        # Steps that share weights go on sharing them.
        key = layer.qkv.data_ptr()
        if key not in packed:
            packed[key] = _layer(layer, depth)
        return packed[key]

    sources = len(weights.depth_in[0]) // config.depformer_dim
    depth_in = weights.depth_in.t().reshape(sources, config.depformer_dim, config.dim)
    return CudaWeights(
        embedding=_pad(weights.embedding, 1, temporal.width),
        offsets=weights.embedding_offsets.int(),
        layers=tuple(layers),
        text_head=_head(weights.text_head, temporal.width),
        depth_in=_pad(_pad(depth_in, 1, depth.width), 2, temporal.width).flatten(0, 1),
        steps=tuple(
            CudaDepthStep(
                step.source,
                tuple(shared(layer) for layer in step.layers),
                _pad(step.embedding, 1, depth.width),
                _head(step.head, depth.width),
            )
            for step in weights.steps
        ),
        kv_scale=torch.stack(scales),
    )


def _layer(layer: Layer, shape: Shape) -> CudaLayer:
    heads, head = shape.heads, shape.true_head
    qkv = layer.qkv.t().reshape(3, heads, head, shape.true_width)
    qkv = _pad(_pad(qkv, 2, shape.head), 3, shape.width).flatten(0, 2)
    out = layer.out.t().reshape(shape.true_width, heads, head)
    out = _pad(_pad(out, 2, shape.head).flatten(1), 0, shape.width)
    gate = layer.gate.t().reshape(2, shape.true_hidden, shape.true_width).transpose(0, 1)
    gate = _pad(_pad(gate, 0, shape.hidden), 2, shape.width).flatten(0, 1)
    down = _pad(_pad(layer.down.t(), 0, shape.width), 1, shape.hidden)
    return CudaLayer(*(part.contiguous() for part in (qkv, out, gate, down)))


def _fp8_layer(layer: CudaLayer, shape: Shape, kv_scale: Tensor) -> Fp8Layer:
    """A normed input has length 1, so its numbers are about 1 / sqrt(width), at most 1."""
    typical = shape.true_width**-0.5
    lengths = layer.gate.float().square().sum(1).sqrt().view(-1, 2).amax(0)
    heard = float(kv_scale[1].max())
    hidden = float(lengths.prod()) * typical**2 / 8
    return Fp8Layer(
        qkv=Fp8Matrix.of(layer.qkv, typical),
        out=Fp8Matrix.of(layer.out, heard),
        gate=Fp8Matrix.of(layer.gate, typical),
        down=Fp8Matrix.of(layer.down, hidden),
        heard_scale=heard,
        hidden_scale=hidden,
    )


def _head(weight: Tensor, width: int) -> Tensor:
    """A head's [in, card] as [card, width], with whole tiles of both."""
    rows = weight.t()
    return _pad(_pad(rows, 0, _up(len(rows))), 1, width)


def _pad(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Zeros behind a dimension, up to `size`; contiguous."""
    missing = size - tensor.shape[dim]
    if missing:
        shape: Sequence[int] = [
            missing if at == dim else length for at, length in enumerate(tensor.shape)
        ]
        tensor = torch.cat((tensor, tensor.new_zeros(shape)), dim)
    return tensor.contiguous()


def _kv_scale(qkv: Tensor, shape: Shape) -> Tensor:
    """[2, heads]. Rotation mixes the two numbers of a pair: the pair's length bounds both."""
    lengths = qkv.float().square().sum(1).view(3, shape.heads, shape.head // 2, 2).sum(3)
    return lengths[1:].amax(2).sqrt().clamp_(min=1e-6) / FP8_MAX


def divisor(value: int, most: int) -> int:
    """The greatest power of two that divides `value`, at most `most`."""
    return min(value & -value, most)
