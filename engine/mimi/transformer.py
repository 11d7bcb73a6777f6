"""The transformer between Mimi's convolutions and its quantiser, on both sides of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine import rope
from engine.checkpoint import Checkpoint
from engine.mimi.config import TransformerConfig
from engine.ring import RingKV
from engine.rows import Rows

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, each [in, out]; layer scales are folded into what they scale."""

    norm1: tuple[Tensor, Tensor]
    in_proj: Tensor
    out_proj: Tensor
    norm2: tuple[Tensor, Tensor]
    linear1: Tensor
    linear2: Tensor

    @classmethod
    def read(
        cls, checkpoint: Checkpoint, name: str, config: TransformerConfig, dtype: torch.dtype
    ) -> Layer:
        """Reads a layer, with fused or split attention projections."""
        width, inner = config.d_model, config.dim_feedforward

        def projection(fused: str, split: str, rows: int) -> Tensor:
            fused, split = (f"{name}.self_attn.{form}" for form in (fused, split))
            return checkpoint.take(split if split in checkpoint else fused, (rows, width))

        def norm(which: str) -> tuple[Tensor, Tensor]:
            return (
                checkpoint.take(f"{name}.{which}.weight", (width,)).to(dtype),
                checkpoint.take(f"{name}.{which}.bias", (width,)).to(dtype),
            )

        def scaled(weight: Tensor, which: str) -> Tensor:
            return weight * checkpoint.take(f"{name}.{which}.scale", (width,))[:, None]

        def ready(weight: Tensor) -> Tensor:
            return weight.t().contiguous().to(dtype)

        in_proj = projection("in_proj_weight", "in_projs.0.weight", 3 * width)
        out_proj = projection("out_proj.weight", "out_projs.0.weight", width)
        linear2 = checkpoint.take(f"{name}.linear2.weight", (width, inner))
        return cls(
            norm1=norm("norm1"),
            in_proj=ready(in_proj),
            out_proj=ready(scaled(out_proj, "layer_scale_1")),
            norm2=norm("norm2"),
            linear1=ready(checkpoint.take(f"{name}.linear1.weight", (inner, width))),
            linear2=ready(scaled(linear2, "layer_scale_2")),
        )

    @property
    def weights(self) -> list[Tensor]:
        """Its tensors."""
        projections = [self.in_proj, self.out_proj, self.linear1, self.linear2]
        return [*self.norm1, *self.norm2, *projections]


@dataclass(frozen=True, slots=True)
class TransformerState:
    """What a transformer remembers of each slot row."""

    ring: RingKV
    offsets: Tensor
    """[slots] int64, positions seen."""

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.ring.nbytes + self.offsets.nbytes

    def reset(self, rows: Rows) -> None:
        """Makes the rows as new."""
        self.ring.reset(rows)
        self.offsets.index_fill_(0, rows.index, 0)


class Transformer:
    """Pre-norm layers without biases, over a window of the last `context` positions."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        config: TransformerConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.layers = [
            Layer.read(checkpoint, f"{name}.transformer.layers.{index}", config, dtype)
            for index in range(config.num_layers)
        ]
        self._frequencies = rope.frequencies(config.head_dim, config.max_period, device)
        self._device, self._dtype = device, dtype

    def state(self, slots: int) -> TransformerState:
        """Fresh rows."""
        config = self.config
        ring = RingKV(
            config.num_layers,
            slots,
            config.num_heads,
            config.context,
            config.head_dim,
            device=self._device,
            dtype=self._dtype,
        )
        return TransformerState(ring, torch.zeros(slots, dtype=torch.int64, device=self._device))

    def __call__(self, state: TransformerState, rows: Rows, x: Tensor) -> Tensor:
        """Appends x [n, T, d_model] to the rows; returns the same shape."""
        n, length, width = x.shape
        heads, head_dim = self.config.num_heads, self.config.head_dim
        offsets = rows.take(state.offsets)
        span = state.ring.span(rows, offsets, length)
        turn = rope.rotation(span.positions, self._frequencies)
        x = x.reshape(-1, width)
        for index, layer in enumerate(self.layers):
            projected = F.layer_norm(x, (width,), *layer.norm1, EPS) @ layer.in_proj
            turned = projected.view(n, length, 3 * heads, head_dim)[:, :, : 2 * heads]
            turned.copy_(rope.rotate(turned, turn))
            qkv = projected.view(n, length, 3, heads, head_dim)
            heard = state.ring.attend(index, span, qkv[:, :, 0], qkv[:, :, 1:])
            x = torch.addmm(x, heard.view(-1, width), layer.out_proj)
            inner = F.gelu(F.layer_norm(x, (width,), *layer.norm2, EPS) @ layer.linear1)
            x = torch.addmm(x, inner, layer.linear2)
        rows.put(state.offsets, offsets + length)
        return x.view(n, length, width)
