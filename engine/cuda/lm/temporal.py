"""The temporal transformer on a GPU: from the tokens of a column to what text and codes are made
of.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from engine.cuda.kernels.elementwise import norm, start, swiglu
from engine.cuda.kernels.linear import SWIGLU
from engine.cuda.kernels.tokens import embed
from engine.cuda.launch import chained
from engine.cuda.lm.attention import Attention, Batch
from engine.cuda.lm.plan import Tile, tiles
from engine.cuda.lm.product import PARTS, Stream, add, project
from engine.cuda.lm.state import SlotState
from engine.cuda.lm.weights import (
    CudaLayer,
    CudaWeights,
    Fp8Layer,
    Fp8Matrix,
    Shape,
    divisor,
    power_of_two,
)

_MIN_FP8_ROWS: Final = 16
"""That the library's product in FP8 wants."""


class Temporal:
    """All layers, and the heads that read them.

    Where there are few rows a product is a launch of its own kernel, which norms its input and
    adds its output. Where there are many the library's products are faster, with kernels between
    them; in FP8 there are no others.
    """

    def __init__(
        self,
        state: SlotState,
        weights: CudaWeights,
        *,
        rows: int,
        logits: Tensor,
        depth_in: Tensor,
        fixed: bool,
    ) -> None:
        """rows: room for so many of a launch. `call` writes the text's logits to `logits`
        [rows, text_card or more], and its part of the depformer's inputs to `depth_in`
        [rows, sources * depth width].
        """
        self._state, self._weights, self._fixed = state, weights, fixed
        self._logits, self._depth_in = logits, depth_in
        self._shape = shape = Shape.temporal(state.config)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        least = max(rows, _MIN_FP8_ROWS)

        def zeros(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        self._attention = Attention(state, weights, rows)
        self._position = zeros(rows, dtype=torch.int32)
        self._squares = zeros(rows, PARTS, dtype=torch.float32)
        self._x, self._normed, self._y = (zeros(least, shape.width) for _ in range(3))
        self._qkv = zeros(least, 3 * shape.attention)
        self._heard = zeros(rows, shape.attention)
        self._gated = zeros(least, 2 * shape.hidden)
        self._hidden = zeros(rows, shape.hidden)
        if isinstance(weights.layers[0], Fp8Layer):
            fp8, self._one = torch.float8_e4m3fn, torch.ones((), device=device)
            self._normed_fp8 = zeros(least, shape.width, dtype=fp8)
            self._heard_fp8 = zeros(least, shape.attention, dtype=fp8)
            self._hidden_fp8 = zeros(least, shape.hidden, dtype=fp8)

    def call(self, rows: int, splits: int, slot: Tensor, user: Tensor) -> None:
        """The next call of the slots `slot` [rows], which hear the codes user [rows, books]."""
        shape, state, attention = self._shape, self._state, self._attention
        config = state.config
        block = divisor(shape.width, 1024)
        embed[(rows, shape.width // block)](
            state.tokens, user, state.calls, slot, state.delays, state.initial,
            self._weights.offsets, self._weights.embedding, attention.frequencies,
            self._position, self._x, self._squares, attention.cosine, attention.sine,
            CHANNELS=config.channels, BOOKS=config.books, COLUMNS=state.columns,
            WIDTH=shape.width, BLOCK=block, PAIRS=shape.head // 2, STRIDE=PARTS,
            num_warps=4, **chained(True),
        )  # fmt: skip
        batch = Batch(rows, slot, self._position, splits, tiles(rows, fixed=self._fixed))
        stream = Stream(self._x, self._squares, shape.true_width, parts=shape.width // block)
        self._layers(batch, stream)
        self._heads(batch, stream)

    def append(self, x: Tensor, slot: Tensor, position: Tensor, splits: int) -> None:
        """Appends positions [rows], whose inputs x [rows, width] are given and overwritten, to
        the rings of slots [rows]; makes nothing of them.
        """
        shape, attention, rows = self._shape, self._attention, len(x)
        start[(rows,)](
            x, position, attention.frequencies, self._squares, attention.cosine, attention.sine,
            WIDTH=shape.width, BLOCK=power_of_two(shape.width), PAIRS=shape.head // 2,
            STRIDE=PARTS, num_warps=8, **chained(True),
        )  # fmt: skip
        batch = Batch(rows, slot, position, splits, tiles(rows, fixed=self._fixed))
        self._layers(batch, Stream(x, self._squares, shape.true_width))

    def _layers(self, batch: Batch, stream: Stream) -> None:
        for index, layer in enumerate(self._weights.layers):
            if isinstance(layer, Fp8Layer):
                self._fp8_layer(batch, index, layer, stream)
            else:
                self._layer(batch, index, layer, stream)

    def _layer(self, batch: Batch, index: int, layer: CudaLayer, stream: Stream) -> None:
        rows, plan, attention = batch.rows, batch.plan, self._attention
        if plan.qkv is None:
            self._norm(rows, stream)
            torch.mm(self._normed[:rows], layer.qkv.t(), out=self._qkv[:rows])
            attention.rotate(batch, index, self._qkv)
        else:
            self._settle(rows, stream)
            attention.project(batch, index, plan.qkv, layer.qkv, stream)
        attention.attend(batch, index, self._heard)
        self._add(batch, plan.out, self._heard, layer.out, stream)
        if plan.gate is None:
            self._norm(rows, stream)
            torch.mm(self._normed[:rows], layer.gate.t(), out=self._gated[:rows])
            self._swiglu(rows)
        else:
            self._settle(rows, stream)
            project(rows, plan.rows, plan.gate, stream, layer.gate, self._hidden, epilogue=SWIGLU)
        self._add(batch, plan.down, self._hidden, layer.down, stream)

    def _fp8_layer(self, batch: Batch, index: int, layer: Fp8Layer, stream: Stream) -> None:
        rows, attention, normed = batch.rows, self._attention, self._normed_fp8
        typical = 1 / math.sqrt(self._shape.true_width)
        self._norm(rows, stream, normed, 1 / typical)
        self._multiply(rows, normed, layer.qkv, self._qkv)
        attention.rotate(batch, index, self._qkv)
        attention.attend(batch, index, self._heard_fp8, 1 / layer.heard_scale)
        self._multiply(rows, self._heard_fp8, layer.out, self._y)
        stream.pending = self._y
        self._norm(rows, stream, normed, 1 / typical)
        self._multiply(rows, normed, layer.gate, self._gated)
        self._swiglu(rows, self._hidden_fp8, 1 / layer.hidden_scale)
        self._multiply(rows, self._hidden_fp8, layer.down, self._y)
        stream.pending = self._y

    def _heads(self, batch: Batch, stream: Stream) -> None:
        rows, plan, weights = batch.rows, batch.plan, self._weights
        self._settle(rows, stream)
        project(rows, plan.rows, plan.depth_in, stream, weights.depth_in, self._depth_in)
        project(rows, plan.rows, plan.text, stream, weights.text_head, self._logits)

    def _multiply(self, rows: int, x: Tensor, matrix: Fp8Matrix, out: Tensor) -> None:
        """out [rows, n]: a product in FP8."""
        least = max(rows, _MIN_FP8_ROWS)
        torch._scaled_mm(
            x[:least],
            matrix.values.t(),
            scale_a=self._one,
            scale_b=matrix.scale,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out[:least],
        )

    def _add(
        self, batch: Batch, tile: Tile | None, y: Tensor, weight: Tensor, stream: Stream
    ) -> None:
        """Adds a product to the stream, or leaves it to be added."""
        if tile is None:
            torch.mm(y[: batch.rows], weight.t(), out=self._y[: batch.rows])
            stream.pending = self._y
        else:
            add(batch.rows, batch.plan.rows, tile, y, weight, stream)

    def _settle(self, rows: int, stream: Stream) -> None:
        """Adds what is still to be added."""
        if stream.pending is not None:
            self._norm(rows, stream)

    def _norm(
        self, rows: int, stream: Stream, out: Tensor | None = None, out_scale: float = 1.0
    ) -> None:
        """The stream's norm, to `out` in FP8 or to `_normed`; what was pending is added first."""
        shape, pending = self._shape, stream.pending
        norm[(rows,)](
            stream.x, stream.x if pending is None else pending,
            self._normed if out is None else out, stream.squares, stream.floor, out_scale,
            WIDTH=shape.width, BLOCK=power_of_two(shape.width), ADDS=pending is not None,
            FP8=out is not None, STRIDE=PARTS, num_warps=8, **chained(True),
        )  # fmt: skip
        stream.pending, stream.parts = None, 1

    def _swiglu(self, rows: int, out: Tensor | None = None, out_scale: float = 1.0) -> None:
        """The gate of `_gated`, to `out` in FP8 or to `_hidden`."""
        hidden = self._shape.hidden
        block = divisor(hidden, 1024)
        swiglu[(hidden // block, rows)](
            self._gated, self._hidden if out is None else out, out_scale,
            HIDDEN=hidden, BLOCK=block, FP8=out is not None, num_warps=4, **chained(True),
        )  # fmt: skip
