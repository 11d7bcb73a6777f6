"""The codec in training form: Mimi's architecture and tensor names, parallel over time.

Two things differ from the exported model and are folded away by `export_state`: the encoder reads
the waveform times `INPUT_GAIN`, and a batch norm without affine terms keeps the projected latents
at unit variance (without it they collapse to a few codes).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INPUT_GAIN = 8.0


@dataclass(frozen=True)
class MimiConfig:
    """Sizes; everything else is Mimi's."""

    n_filters: int = 20
    dim: int = 256
    heads: int = 4
    layers: int = 2
    feedforward: int = 1024
    context: int = 50
    codebook_dim: int = 64
    bins: int = 512
    n_q: int = 8
    ratios: tuple[int, ...] = (8, 6, 5, 4)

    def to_json(self) -> dict[str, Any]:
        """The config file the engine reads (Kyutai's keys)."""
        seanet = {
            "channels": 1, "dimension": self.dim, "causal": True, "n_filters": self.n_filters,
            "n_residual_layers": 1, "activation": "ELU", "compress": 2, "dilation_base": 2,
            "disable_norm_outer_blocks": 0, "kernel_size": 7, "residual_kernel_size": 3,
            "last_kernel_size": 3, "norm": "none", "pad_mode": "constant",
            "ratios": list(self.ratios), "true_skip": True,
        }  # fmt: skip
        transformer = {
            "d_model": self.dim, "num_heads": self.heads, "num_layers": self.layers,
            "causal": True, "layer_scale": 0.01, "context": self.context, "conv_layout": True,
            "max_period": 10_000, "gating": "none", "norm": "layer_norm",
            "positional_embedding": "rope", "dim_feedforward": self.feedforward,
            "input_dimension": self.dim, "output_dimensions": [self.dim],
        }  # fmt: skip
        quantizer = {
            "dimension": self.codebook_dim, "n_q": self.n_q, "bins": self.bins,
            "input_dimension": self.dim, "output_dimension": self.dim,
        }  # fmt: skip
        return {
            "sample_rate": 24_000, "channels": 1, "frame_rate": 12.5, "seanet": seanet,
            "quantizer": quantizer, "transformer": transformer,
        }  # fmt: skip


class Named(nn.Module):
    """Holds one child under a given name: Mimi's checkpoints nest `conv.conv` and the like."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class CausalConv(nn.Module):
    """Conv1d with left padding only: zeros, or copies of the first sample."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, replicate: bool = False
    ) -> None:
        super().__init__()
        conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=not replicate)
        self.conv = Named(conv=conv)
        self._conv = [conv]
        self._pad, self._replicate = kernel - stride, replicate

    @property
    def weight_conv(self) -> nn.Conv1d:
        return self._conv[0]

    def forward(self, x: Tensor) -> Tensor:
        conv = self.weight_conv
        if self._replicate:
            out: Tensor = conv(F.pad(x, (self._pad, 0), mode="replicate"))
            return out
        # padded on both sides, which needs no copy, and cut
        both = F.conv1d(x, conv.weight, conv.bias, conv.stride, self._pad)
        return both[..., : x.shape[-1] // conv.stride[0]]


class CausalUpconv(nn.Module):
    """ConvTranspose1d with kernel 2 * stride, trimmed on the right."""

    def __init__(self, inputs: int, outputs: int, stride: int, depthwise: bool = False) -> None:
        super().__init__()
        groups = inputs if depthwise else 1
        conv = nn.ConvTranspose1d(
            inputs, outputs, 2 * stride, stride, groups=groups, bias=not depthwise
        )
        self.convtr = Named(convtr=conv)
        self._conv = [conv]
        self._trim = stride

    @property
    def weight_conv(self) -> nn.ConvTranspose1d:
        return self._conv[0]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weight_conv(x)[..., : -self._trim]
        return out


class Residual(nn.Module):
    """ELU, conv 3, ELU, conv 1, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(),
            CausalConv(channels, channels // 2, 3),
            nn.ELU(),
            CausalConv(channels // 2, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.block(x)
        return out


def seanet_encoder(c: MimiConfig) -> nn.Sequential:
    channels = c.n_filters
    layers: list[nn.Module] = [CausalConv(1, channels, 7)]
    for ratio in reversed(c.ratios):
        layers += [
            Residual(channels),
            nn.ELU(),
            CausalConv(channels, 2 * channels, 2 * ratio, ratio),
        ]
        channels *= 2
    return nn.Sequential(*layers, nn.ELU(), CausalConv(channels, c.dim, 3))


def seanet_decoder(c: MimiConfig) -> nn.Sequential:
    channels = c.n_filters * 2 ** len(c.ratios)
    layers: list[nn.Module] = [CausalConv(c.dim, channels, 7)]
    for ratio in c.ratios:
        layers += [nn.ELU(), CausalUpconv(channels, channels // 2, ratio), Residual(channels // 2)]
        channels //= 2
    return nn.Sequential(*layers, nn.ELU(), CausalConv(channels, 1, 3))


def rope(x: Tensor, positions: Tensor, period: float = 10_000.0) -> Tensor:
    """Rotate interleaved pairs. `x` is [batch, heads, time, head_dim]."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32)
    angle = positions.float()[:, None] * period ** (-steps / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.float().view(*x.shape[:-1], half, 2).unbind(-1)
    rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return rotated.flatten(-2).to(x.dtype)


class LayerScale(nn.Module):
    def __init__(self, dim: int, init: float = 0.1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class MimiLayer(nn.Module):
    """Pre-norm attention and GELU feed-forward, each branch scaled before its residual add."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.self_attn = Named(
            in_projs=nn.ModuleList([nn.Linear(c.dim, 3 * c.dim, bias=False)]),
            out_projs=nn.ModuleList([nn.Linear(c.dim, c.dim, bias=False)]),
        )
        self.linear1 = nn.Linear(c.dim, c.feedforward, bias=False)
        self.linear2 = nn.Linear(c.feedforward, c.dim, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.layer_scale_1, self.layer_scale_2 = LayerScale(c.dim), LayerScale(c.dim)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        qkv = self.self_attn.in_projs[0](self.norm1(x))  # type: ignore[index,operator]
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rope(q, positions), rope(k, positions)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.self_attn.out_projs[0](y.transpose(1, 2).flatten(2))  # type: ignore[index,operator]
        x = x + self.layer_scale_1(y)
        y = self.linear2(F.gelu(self.linear1(self.norm2(x))))
        out: Tensor = x + self.layer_scale_2(y)
        return out


class MimiTransformer(nn.Module):
    """Layers over [batch, dim, time] at 25 Hz, with the window of the streaming ring.

    A frame is two positions and both are in the ring before they attend, so the first of them
    sees one key fewer than `context`.
    """

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.context = c.context
        self.transformer = Named(layers=nn.ModuleList(MimiLayer(c) for _ in range(c.layers)))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[-1], device=x.device)
        query, key = positions[:, None], positions[None]
        mask = (key <= query) & (key > query // 2 * 2 + 1 - self.context)
        x = x.transpose(1, 2)
        for layer in self.transformer.layers:  # type: ignore[union-attr]
            x = layer(x, positions, mask)
        return x.transpose(1, 2)
