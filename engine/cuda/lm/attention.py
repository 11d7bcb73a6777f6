"""Attention over the pages of slots' rings: keys and values are written, and queries attend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.cuda.kernels.attention import attend
from engine.cuda.kernels.elementwise import rotate
from engine.cuda.kernels.linear import project_qkv
from engine.cuda.launch import chained
from engine.cuda.lm.pages import PAGE
from engine.cuda.lm.plan import SMALLEST_SPLIT, SPLIT_PAGES, Tile, Tiles
from engine.cuda.lm.product import Stream, product_options
from engine.cuda.lm.state import SlotState
from engine.cuda.lm.weights import CudaWeights, Shape, divisor, power_of_two
from engine.rope import frequencies

LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a chain of launches."""

    rows: int
    slot: Tensor
    """[rows or more] int32: the state row of each."""
    position: Tensor
    """[rows or more] int32: each one's place in its stream."""
    splits: int
    """Of SPLIT_PAGES pages: as many as the oldest row needs."""
    plan: Tiles


class Attention:
    """The launches between a layer's product for queries, keys and values and the one after it."""

    def __init__(self, state: SlotState, weights: CudaWeights, rows: int) -> None:
        """rows: room for so many of a launch."""
        config, device = state.config, weights.embedding.device
        self._state, self._scale = state, weights.kv_scale
        self._shape = shape = Shape.temporal(config)
        self._fp8 = state.kv.itemsize == 1

        def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(rows, *sizes, dtype=dtype, device=device)

        # Zero, no rotation, for pairs that are padding.
        true = frequencies(shape.true_head, config.max_period, device)
        padding = (0, (shape.head - shape.true_head) // 2)
        self.frequencies = torch.nn.functional.pad(true, padding)
        """[head / 2]"""
        self.cosine, self.sine = (zeros(shape.head // 2) for _ in range(2))
        """[rows, head / 2] float32: the rotation of each row's position."""
        self._query = zeros(shape.attention, dtype=weights.embedding.dtype)
        parts = (shape.heads, self._split_room(SMALLEST_SPLIT))
        self._part_max, self._part_sum = (zeros(*parts) for _ in range(2))
        self._part_out = zeros(*parts, shape.head)
        self._arrived = zeros(shape.heads, dtype=torch.int32)

    def project(self, batch: Batch, index: int, tile: Tile, weight: Tensor, stream: Stream) -> None:
        """Layer `index` of the stream, normed: queries, and keys and values in their pages.

        weight: [3 * attention, width].
        """
        n, k = weight.shape
        fit = tile.fit(divisor(n, self._shape.head), k, wide=weight.itemsize > 2)
        row_tiles = -(-batch.rows // batch.plan.rows)
        project_qkv[(row_tiles * (n // fit.n),)](
            stream.x, stream.x.stride(0), weight, self._query, stream.squares,
            *self._cells(batch, index), batch.rows, row_tiles, stream.floor,
            K=k, **self._sizes, **product_options(batch.plan.rows, fit, stream.parts),
        )  # fmt: skip

    def rotate(self, batch: Batch, index: int, qkv: Tensor) -> None:
        """The same of a product that is there, qkv [rows, 3 * attention]."""
        shape = self._shape
        group = divisor(shape.heads, max(1, 1024 // shape.head))
        rotate[(3, batch.rows, shape.heads // group)](
            qkv, self._query, *self._cells(batch, index),
            GROUP=group, num_warps=4, **self._sizes, **chained(True),
        )  # fmt: skip

    def attend(self, batch: Batch, index: int, out: Tensor, out_scale: float = 1.0) -> None:
        """out [rows, attention]: what the queries see. out_scale: of an `out` in FP8."""
        shape, state = self._shape, self._state
        tile = batch.plan.attention_fp8 if self._fp8 else batch.plan.attention
        splits = max(1, -(-batch.splits * SPLIT_PAGES // tile.split_pages))
        attend[(splits, shape.heads, batch.rows)](
            self._query, state.kv[index], self._scale[index], out,
            batch.position, batch.slot, state.table,
            self._part_max, self._part_sum, self._part_out, self._arrived,
            state.kv.stride(1), state.context, LOG2_E / math.sqrt(shape.true_head), out_scale,
            SPLIT_PAGES=tile.split_pages, SPLITS=min(splits, 2),
            SPLITS_2=self._split_room(tile.split_pages), TILE=tile.positions,
            num_warps=tile.warps, **self._sizes, **chained(True),
        )  # fmt: skip

    def _cells(self, batch: Batch, index: int) -> tuple[Tensor | int, ...]:
        """Where rows' keys and values of a layer go, and how they are turned."""
        kv = self._state.kv
        return (
            batch.position, batch.slot, self._state.table, self.cosine, self.sine,
            kv[index], self._scale[index], kv.stride(1),
        )  # fmt: skip

    @property
    def _sizes(self) -> dict[str, Any]:
        return {
            "HEADS": self._shape.heads,
            "HEAD": self._shape.head,
            "PAGES": self._state.places,
            "PAGE": PAGE,
            "FP8": self._fp8,
        }

    def _split_room(self, split_pages: int) -> int:
        """Room for the splits of a whole ring: a power of two."""
        return power_of_two(-(-self._state.places // split_pages))
