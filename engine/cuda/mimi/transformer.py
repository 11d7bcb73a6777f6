"""The launches of Mimi's transformers, and their memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine import rope
from engine.cuda.kernels import mimi_transformer
from engine.cuda.mimi.chain import Chain, Windows
from engine.cuda.mimi.conv import convolve
from engine.cuda.mimi.tiles import Tile, wide
from engine.cuda.mimi.weights import LayerWeights, padded
from engine.mimi.config import TransformerConfig
from engine.mimi.transformer import EPS, Layer


class CudaTransformer:
    """What `engine.mimi.transformer.Transformer` computes, in place on a residual stream."""

    def __init__(self, chain: Chain, config: TransformerConfig, latents: int) -> None:
        """latents: of a frame."""
        self._chain, self._latents = chain, latents
        self._config = config
        rows = chain.max_rows * latents
        self.dim = wide(config.d_model)
        """Of the residual stream."""
        self.half = wide(config.head_dim // 2)
        """Pairs of numbers in a head, which is 2 * half wide."""
        inner = config.num_heads * 2 * self.half
        self.x = chain.zeros(rows, self.dim, dtype=torch.float32)
        """[max_rows * latents, dim], the residual stream."""
        self._qkv = chain.zeros(rows, 3 * inner)
        self._heard = chain.zeros(rows, inner)
        self._inner = chain.zeros(rows, wide(config.dim_feedforward))
        self.ring = chain.zeros(
            config.num_layers, chain.slots, config.num_heads, 2, config.context, 2 * self.half
        )
        """[layers, slots, heads, 2 (key, value), context, head dimension]"""

    @property
    def stream(self) -> Windows:
        """`x` as convolutions take it."""
        return self._steps(self.x)

    def append(self, layers: Sequence[Layer], target: Windows, *, replicate: bool) -> None:
        """Appends all layers, the last of which writes to `target`; `replicate`: see `convolve`."""
        chain, config, x = self._chain, self._config, self.stream
        frequencies = rope.frequencies(config.head_dim, config.max_period, chain.device)
        frequencies = padded(frequencies, self.half)
        heard, inner = self._steps(self._heard), self._steps(self._inner)
        for index, layer in enumerate(layers):
            weights = LayerWeights.pack(layer, config.num_heads, self.dim, self.half, chain.dtype)
            self._norm_linear(weights.norm1, weights.in_proj, self._qkv, gelu=False)
            self._attend(index, frequencies)
            convolve(chain, heard, weights.out_proj, x, residual=x.data)
            self._norm_linear(weights.norm2, weights.linear1, self._inner, gelu=True)
            last = index == config.num_layers - 1
            convolve(
                chain,
                inner,
                weights.linear2,
                target if last else x,
                residual=x.data,
                replicate=last and replicate,
            )

    def _steps(self, data: Tensor) -> Windows:
        """Data [max_rows * latents, numbers] as a buffer that keeps nothing."""
        return Windows(data.view(self._chain.max_rows, -1), self._latents, data.shape[1], None)

    def _norm_linear(
        self, norm: tuple[Tensor, Tensor], weight: Tensor, out: Tensor, *, gelu: bool
    ) -> None:
        """Appends out [max_rows * latents, width] = norm(x) weight^T, and GELU. weight:
        [width, dim].
        """
        width, dim = weight.shape
        chain, latents, channels = self._chain, self._latents, self._config.d_model

        def launch(rows: int, slot: Tensor) -> None:
            count = rows * latents
            tile = Tile.choose(chain.tiled(rows, latents), width, dim, chain.dtype.itemsize)
            m, n = min(tile.m, 64), min(tile.n, 64)
            mimi_transformer.norm_linear[(-(-count // m) * (width // n),)](
                self.x,
                *norm,
                weight,
                out,
                count,
                EPS,
                CHANNELS=channels,
                DIM=dim,
                WIDTH=width,
                GELU=gelu,
                TILE_M=m,
                TILE_N=n,
                num_warps=8 if m * n > 32 * 32 else 4,
                **chain.options,
            )

        chain.launches.append(launch)

    def _attend(self, layer: int, frequencies: Tensor) -> None:
        """Appends a layer's attention, from `_qkv` to `_heard`."""
        chain, config, ring = self._chain, self._config, self.ring[layer]

        def launch(rows: int, slot: Tensor) -> None:
            mimi_transformer.attend[(rows, config.num_heads)](
                self._qkv,
                ring,
                self._heard,
                frequencies,
                slot,
                chain.frames,
                config.head_dim**-0.5,
                RING_SLOT=ring.stride(0),
                STEPS=self._latents,
                STEPS_TILE=wide(self._latents),
                CONTEXT=config.context,
                CELLS=wide(config.context),
                HEADS=config.num_heads,
                HALF=self.half,
                num_warps=8,
                **chain.options,
            )

        chain.launches.append(launch)
