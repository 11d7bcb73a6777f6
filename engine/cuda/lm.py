"""The RQ-transformer on a GPU: a frame of any set of rows as one chain of launches.

`engine.lm` says what is computed. Everything that a launch reads or writes is at a fixed place,
so that a chain can be captured in a CUDA graph and replayed: `slot` and `user` go in, `text`,
`codes` and `heard_slot` come out. State has a row for each slot and one more, the trash row, to
which rows of a launch point that stand for nobody.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from engine.api import EngineError
from engine.cuda.kernels.attention import attend, attend_books
from engine.cuda.kernels.elementwise import norm, rotate, start, swiglu
from engine.cuda.kernels.linear import ADD, STORE, SWIGLU, linear, project_qkv
from engine.cuda.kernels.tokens import draw, embed, finish
from engine.cuda.launch import chained
from engine.cuda.pages import PAGE
from engine.cuda.plan import DEPTH_ROWS, NARROWEST, SMALLEST_SPLIT, SPLIT_PAGES, Tile, Tiles, tiles
from engine.cuda.weights import (
    CudaWeights,
    Fp8Layer,
    Fp8Matrix,
    Shape,
    divisor,
    power_of_two,
)
from engine.lm.config import LMConfig
from engine.rope import frequencies
from engine.sampling import Sampling, kept_tokens, seed_key

EPS: Final = 1e-8
PARTS: Final = 256
"""Room for the parts of a row's sum of squares."""
_MOST_TOKENS: Final = 1 << 19
"""Of a vocabulary, which is counted in 20 bits when it is drawn from."""
PREFILL_ROWS: Final = 128
"""Positions of a prompt in one launch."""
_LOG2_E: Final = 1.4426950408889634
_AHEAD: Final = 4
"""Cache lines of each weight row that are fetched while the kernel before ends."""
_MIN_FP8_ROWS: Final = 16
_FREE: Final = -2
"""A token that isn't forced."""


def check_sizes(config: LMConfig) -> None:
    """Raises EngineError, naming the field, for a model that is too large for the kernels."""
    for name, size, most in (
        ("dim", config.dim, PARTS * NARROWEST),
        ("depformer_dim", config.depformer_dim, PARTS * NARROWEST),
        ("text_card", config.text_card, _MOST_TOKENS),
        ("card", config.card, _MOST_TOKENS),
    ):
        if size > most:
            raise EngineError(f"config: {name} can be {most} on CUDA at most, not {size}")


class CudaLM:
    """Weights, state and the launches of a step."""

    def __init__(
        self,
        config: LMConfig,
        weights: CudaWeights,
        *,
        slots: int,
        max_rows: int,
        pages: int,
        places: int,
        context: int,
        kv: torch.dtype,
        fixed: bool,
        prefill_rows: int = PREFILL_ROWS,
    ) -> None:
        """slots: without the trash row. pages: of the pool, each `PAGE` positions of all layers;
        `places` of them make a slot's ring, of which the last `context` positions are seen.

        Raises EngineError for a model that is too large.
        """
        check_sizes(config)
        self.config = config
        self.weights = weights
        self.fixed = fixed
        self.slots = slots
        self.max_rows = max_rows
        self.prefill_rows = prefill_rows
        self.places = places
        self.context = context
        self.shape, self.depth = Shape.temporal(config), Shape.depth(config)
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self._wide = self.dtype.itemsize > 2
        self._fp8 = kv.itemsize == 1
        self._state(slots + 1)
        self._inputs_and_outputs(max_rows)
        self._scratch(max(max_rows, prefill_rows))
        shape = self.shape
        # Behind the pool: a page of zeros, where a ring has none, and the trash row's.
        self.kv = torch.zeros(
            config.num_layers, 2, pages + 2, shape.heads, PAGE, shape.head,
            dtype=kv, device=self.device,
        )  # fmt: skip
        """[layers, 2 (key, value), pages, heads, PAGE, head]"""
        self.table = torch.full((slots + 1, places), pages, dtype=torch.int32, device=self.device)
        """[slots + 1, places]: the page at each place of a slot's ring."""
        self.table[slots] = pages + 1

    @property
    def trash(self) -> int:
        """The state row of nobody."""
        return self.slots

    @staticmethod
    def page_bytes(config: LMConfig, kv: torch.dtype) -> int:
        """Bytes of a page."""
        shape = Shape.temporal(config)
        return config.num_layers * 2 * shape.attention * PAGE * kv.itemsize

    def _zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(*shape, dtype=dtype or self.dtype, device=self.device)

    def _state(self, rows: int) -> None:
        config = self.config
        self._columns = config.max_delay + 2
        self._initial = torch.full((config.channels,), config.card, dtype=torch.int32)
        self._initial[0] = config.text_card
        self._initial = self._initial.to(self.device)
        self._delays = torch.tensor(config.delays, dtype=torch.int32, device=self.device)
        self.calls = self._zeros(rows, dtype=torch.int32)
        """[slots + 1]: the number of each slot's next call."""
        self.tokens = self._initial[:, None].repeat(rows, 1, self._columns)
        """[slots + 1, channels, max_delay + 2]"""
        self.forced = torch.full(
            (rows, 1 + config.books), _FREE, dtype=torch.int32, device=self.device
        )
        """[slots + 1, 1 + books]: tokens of the next call that aren't to be drawn."""
        self._keys = self._zeros(rows, dtype=torch.int64)
        self._temperature = torch.ones(2, rows, device=self.device)
        self._kept = torch.ones(2, rows, dtype=torch.int32, device=self.device)
        for row in range(rows):
            self.set_sampling(row, Sampling())

    def _inputs_and_outputs(self, rows: int) -> None:
        books, i32 = self.config.books, torch.int32
        self.slot = torch.full((rows,), self.trash, dtype=i32, device=self.device)
        """[max_rows]: the state row of each row of a launch."""
        self.user = self._zeros(rows, books, dtype=i32)
        """[max_rows, books]: the user's codes."""
        self.text = self._zeros(rows, dtype=i32)
        """[max_rows]: the text token of the frame that is complete, -2 if none is."""
        self.codes = self._zeros(rows, books, dtype=i32)
        """[max_rows, books]: its codes."""
        self.heard_slot = torch.full((rows,), self.trash, dtype=i32, device=self.device)
        """[max_rows]: `slot`, but the trash row where no frame is complete."""
        self.prompt_slot = torch.full(
            (self.prefill_rows,), self.trash, dtype=i32, device=self.device
        )
        """[prefill_rows]: as `slot`, for a prompt's launch."""
        self.prompt_position = self._zeros(self.prefill_rows, dtype=i32)
        """[prefill_rows]"""
        self.prompt_x = self._zeros(self.prefill_rows, self.shape.width)
        """[prefill_rows, width]: inputs of a prompt's positions."""

    def _scratch(self, rows: int) -> None:
        shape, depth, config, f32 = self.shape, self.depth, self.config, torch.float32
        self._frequency = self._padded_frequencies()
        pairs = shape.head // 2
        self._position = self._zeros(rows, dtype=torch.int32)
        self._cosine, self._sine = (self._zeros(rows, pairs, dtype=f32) for _ in range(2))
        self._squares = self._zeros(rows, PARTS, dtype=f32)
        self._x, self._normed, self._y = (
            self._zeros(max(rows, _MIN_FP8_ROWS), shape.width) for _ in range(3)
        )
        least = max(rows, _MIN_FP8_ROWS)
        self._qkv = self._zeros(least, 3 * shape.attention)
        self._query, self._heard = (self._zeros(rows, shape.attention) for _ in range(2))
        self._gated = self._zeros(least, 2 * shape.hidden)
        if isinstance(self.weights.layers[0], Fp8Layer):
            fp8, self._one = torch.float8_e4m3fn, torch.ones((), device=self.device)
            self._normed_fp8 = self._zeros(least, shape.width, dtype=fp8)
            self._heard_fp8 = self._zeros(least, shape.attention, dtype=fp8)
            self._hidden_fp8 = self._zeros(least, shape.hidden, dtype=fp8)
        self._hidden = self._zeros(rows, shape.hidden)
        cards = [len(self.weights.text_head), *(len(step.head) for step in self.weights.steps)]
        self._logits = self._zeros(rows, max(cards))
        self._depth_in = self._zeros(rows, len(self.weights.depth_in))
        self._made = self._zeros(rows, 1 + config.books, dtype=torch.int32)
        self._depth_x, self._depth_heard = (self._zeros(rows, depth.width) for _ in range(2))
        self._depth_attention = self._zeros(rows, depth.attention)
        self._depth_squares = self._zeros(rows, PARTS, dtype=f32)
        self._depth_hidden = self._zeros(rows, depth.hidden)
        self._depth_qkv = self._zeros(
            config.depformer_num_layers, config.books, rows, 3 * depth.attention
        )
        parts = (rows, shape.heads, self._split_room(SMALLEST_SPLIT))
        self._part_max, self._part_sum = (self._zeros(*parts, dtype=f32) for _ in range(2))
        self._part_out = self._zeros(*parts, shape.head, dtype=f32)
        self._arrived = self._zeros(rows, shape.heads, dtype=torch.int32)

    def _split_room(self, split_pages: int) -> int:
        """Room for the splits of a whole ring: a power of two."""
        return power_of_two(-(-self.places // split_pages))

    def _padded_frequencies(self) -> Tensor:
        """[head / 2]; zero, no rotation, for pairs that are padding."""
        shape = self.shape
        true = frequencies(shape.true_head, self.config.max_period, self.device)
        return torch.nn.functional.pad(true, (0, (shape.head - shape.true_head) // 2))

    # State of a slot

    def set_sampling(self, slot: int, sampling: Sampling) -> None:
        """Gives a slot its sampling parameters, until it is reset."""
        config = self.config
        self._keys[slot] = seed_key(sampling.seed)
        for kind, temperature, top_k, card in (
            (0, sampling.text_temperature, sampling.text_top_k, config.text_card),
            (1, sampling.audio_temperature, sampling.audio_top_k, config.card),
        ):
            self._temperature[kind, slot] = temperature or 1.0
            self._kept[kind, slot] = kept_tokens(temperature, top_k, card)

    def reset(self, slots: Tensor) -> None:
        """Makes slots [n] int64 as new; their pages are the owner's matter."""
        self.calls.index_fill_(0, slots, 0)
        self.forced.index_fill_(0, slots, _FREE)
        fresh = self._initial[:, None].expand(len(slots), -1, self._columns)
        self.tokens.index_copy_(0, slots, fresh)

    def begin(self, slot: int, call: int, column: Tensor, forced: Tensor) -> None:
        """Puts a slot before call `call`, whose column [channels] and forced tokens are given."""
        phase = call % self._columns
        self.tokens[slot, :, phase] = column.to(self.tokens)
        self.forced[slot] = forced.to(self.forced)
        self.calls[slot] = call

    # Launches

    def launch(self, rows: int, splits: int) -> None:
        """A call of the first `rows` rows of `slot`; `splits` are as many as the oldest needs."""
        self.launch_temporal(rows, splits)
        self.launch_depformer(rows)

    def launch_temporal(self, rows: int, splits: int) -> None:
        """The first part of a call: up to the logits of the text."""
        plan = tiles(rows, fixed=self.fixed)
        shape, config = self.shape, self.config
        block = divisor(shape.width, 1024)
        embed[(rows, shape.width // block)](
            self.tokens, self.user, self.calls, self.slot, self._delays, self._initial,
            self.weights.offsets, self.weights.embedding, self._frequency,
            self._position, self._x, self._squares, self._cosine, self._sine,
            CHANNELS=config.channels, BOOKS=config.books, COLUMNS=self._columns,
            WIDTH=shape.width, BLOCK=block, PAIRS=shape.head // 2, STRIDE=PARTS,
            num_warps=4, **self._chained,
        )  # fmt: skip
        x, parts, pending = self._temporal(
            rows, splits, plan, self._x, self.slot, self._position, shape.width // block
        )
        self._heads(rows, plan, x, parts, pending)

    def launch_prompt(self, splits: int) -> None:
        """Appends `prefill_rows` given positions to their slots' rings, and makes nothing."""
        shape = self.shape
        start[(self.prefill_rows,)](
            self.prompt_x, self.prompt_position, self._frequency,
            self._squares, self._cosine, self._sine,
            WIDTH=shape.width, BLOCK=power_of_two(shape.width), PAIRS=shape.head // 2,
            STRIDE=PARTS, num_warps=8, **self._chained,
        )  # fmt: skip
        rows = self.prefill_rows
        plan = tiles(rows, fixed=self.fixed)
        self._temporal(rows, splits, plan, self.prompt_x, self.prompt_slot, self.prompt_position, 1)

    @property
    def _chained(self) -> dict[str, Any]:
        return chained(True)

    def _temporal(
        self,
        rows: int,
        splits: int,
        plan: Tiles,
        x: Tensor,
        slot: Tensor,
        position: Tensor,
        parts: int,
    ) -> tuple[Tensor, int, Tensor | None]:
        """All layers on x [rows, width], whose squares are there in `parts` parts.

        Returns x, its parts, and what is still to be added to it, if that's so.
        """
        shape, weights = self.shape, self.weights
        pending: Tensor | None = None
        for index, layer in enumerate(weights.layers):
            if isinstance(layer, Fp8Layer):
                pending = self._fp8_layer(
                    rows, index, layer, splits, plan, x, slot, position, pending
                )
                parts = 1
                continue
            if plan.qkv is None:
                self._norm(rows, x, pending)
                torch.mm(self._normed[:rows], layer.qkv.t(), out=self._qkv[:rows])
                self._rotate(rows, index, slot, position)
            else:
                if pending is not None:
                    self._norm(rows, x, pending)
                    parts = 1
                self._project(rows, index, plan, plan.qkv, layer.qkv, x, slot, position, parts)
            self._attend(rows, index, splits, plan, slot, position, self._heard)
            pending, parts = self._add(rows, plan, plan.out, self._heard, layer.out, x)
            if plan.gate is None:
                self._norm(rows, x, pending)
                torch.mm(self._normed[:rows], layer.gate.t(), out=self._gated[:rows])
                self._swiglu(rows)
            else:
                if pending is not None:
                    self._norm(rows, x, pending)
                    parts = 1
                self._linear(
                    rows, plan.rows, plan.gate, x, layer.gate, self._hidden, SWIGLU, parts,
                    shape.true_width,
                )  # fmt: skip
            pending, parts = self._add(rows, plan, plan.down, self._hidden, layer.down, x)
        return x, parts, pending

    def _fp8_layer(
        self,
        rows: int,
        index: int,
        layer: Fp8Layer,
        splits: int,
        plan: Tiles,
        x: Tensor,
        slot: Tensor,
        position: Tensor,
        pending: Tensor | None,
    ) -> Tensor:
        """One layer with weights in FP8; returns what is still to be added to x."""
        typical = 1 / math.sqrt(self.shape.true_width)
        normed = self._normed_fp8
        self._norm(rows, x, pending, normed, 1 / typical)
        self._multiply(rows, normed, layer.qkv, self._qkv)
        self._rotate(rows, index, slot, position)
        self._attend(
            rows, index, splits, plan, slot, position, self._heard_fp8, 1 / layer.heard_scale
        )
        self._multiply(rows, self._heard_fp8, layer.out, self._y)
        self._norm(rows, x, self._y, normed, 1 / typical)
        self._multiply(rows, normed, layer.gate, self._gated)
        self._swiglu(rows, self._hidden_fp8, 1 / layer.hidden_scale)
        self._multiply(rows, self._hidden_fp8, layer.down, self._y)
        return self._y

    def _multiply(self, rows: int, x: Tensor, matrix: Fp8Matrix, out: Tensor) -> None:
        """out [rows, n]: a product in FP8; the library wants at least 16 rows."""
        least = max(rows, _MIN_FP8_ROWS)
        torch._scaled_mm(
            x[:least],
            matrix.values.t(),
            scale_a=self._one,
            scale_b=matrix.scale,
            out_dtype=self.dtype,
            use_fast_accum=True,
            out=out[:least],
        )

    def _add(
        self, rows: int, plan: Tiles, tile: Tile | None, y: Tensor, weight: Tensor, x: Tensor
    ) -> tuple[Tensor | None, int]:
        """Adds a product to x, or leaves it to be added; returns that, and x's parts."""
        if tile is None:
            torch.mm(y[:rows], weight.t(), out=self._y[:rows])
            return self._y, 1
        width = self.shape.true_width
        return None, self._linear(rows, plan.rows, tile, y, weight, x, ADD, 0, width)

    def _linear(
        self,
        rows: int,
        tile_rows: int,
        tile: Tile,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        epilogue: Any,
        parts: int,
        true_width: int,
        squares: Tensor | None = None,
    ) -> int:
        """Returns how many parts an ADD's squares have."""
        n, k = weight.shape
        fit = tile.fit(n, k, wide=self._wide)
        squares = self._squares if squares is None else squares
        row_tiles = -(-rows // tile_rows)
        linear[(row_tiles * (n // fit.n),)](
            x, x.stride(0), weight, out, out.stride(0), squares, squares,
            rows, row_tiles, true_width * EPS,
            N=n, K=k, EPILOGUE=epilogue, PARTS=parts, PARTS_2=power_of_two(parts), STRIDE=PARTS,
            TILE_M=tile_rows, TILE_N=fit.n, TILE_K=fit.k, STAGES=fit.stages,
            AHEAD=self._ahead(fit), num_warps=fit.warps, **self._chained,
        )  # fmt: skip
        return n // fit.n

    def _ahead(self, tile: Tile) -> int:
        return _AHEAD if tile.k >= 64 * _AHEAD or tile.k >= 128 else 0

    def _project(
        self,
        rows: int,
        index: int,
        plan: Tiles,
        tile: Tile,
        weight: Tensor,
        x: Tensor,
        slot: Tensor,
        position: Tensor,
        parts: int,
    ) -> None:
        shape = self.shape
        n, k = weight.shape
        fit = tile.fit(divisor(n, shape.head), k, wide=self._wide)
        row_tiles = -(-rows // plan.rows)
        project_qkv[(row_tiles * (n // fit.n),)](
            x, x.stride(0), weight, self._query, self._squares, position, slot, self.table,
            self._cosine, self._sine, self.kv[index], self.weights.kv_scale[index],
            self.kv.stride(1), rows, row_tiles, shape.true_width * EPS,
            K=k, HEADS=shape.heads, HEAD=shape.head, PAGES=self.places, PAGE=PAGE, FP8=self._fp8,
            PARTS=parts, PARTS_2=power_of_two(parts), STRIDE=PARTS,
            TILE_M=plan.rows, TILE_N=fit.n, TILE_K=fit.k, STAGES=fit.stages,
            AHEAD=self._ahead(fit), num_warps=fit.warps, **self._chained,
        )  # fmt: skip

    def _norm(
        self,
        rows: int,
        x: Tensor,
        add: Tensor | None,
        out: Tensor | None = None,
        out_scale: float = 1.0,
    ) -> None:
        shape = self.shape
        norm[(rows,)](
            x, x if add is None else add, self._normed if out is None else out, self._squares,
            shape.true_width * EPS, out_scale,
            WIDTH=shape.width, BLOCK=power_of_two(shape.width), ADDS=add is not None,
            FP8=out is not None,
            STRIDE=PARTS, num_warps=8, **self._chained,
        )  # fmt: skip

    def _rotate(self, rows: int, index: int, slot: Tensor, position: Tensor) -> None:
        shape = self.shape
        group = divisor(shape.heads, max(1, 1024 // shape.head))
        rotate[(3, rows, shape.heads // group)](
            self._qkv, self._query, position, slot, self.table, self._cosine, self._sine,
            self.kv[index], self.weights.kv_scale[index], self.kv.stride(1),
            HEADS=shape.heads, HEAD=shape.head, PAGES=self.places, PAGE=PAGE, GROUP=group,
            FP8=self._fp8, num_warps=4, **self._chained,
        )  # fmt: skip

    def _attend(
        self,
        rows: int,
        index: int,
        splits: int,
        plan: Tiles,
        slot: Tensor,
        position: Tensor,
        out: Tensor,
        out_scale: float = 1.0,
    ) -> None:
        shape = self.shape
        tile = plan.attention_fp8 if self._fp8 else plan.attention
        splits = max(1, -(-splits * SPLIT_PAGES // tile.split_pages))
        attend[(splits, shape.heads, rows)](
            self._query, self.kv[index], self.weights.kv_scale[index], out,
            position, slot, self.table,
            self._part_max, self._part_sum, self._part_out, self._arrived,
            self.kv.stride(1), self.context, _LOG2_E / math.sqrt(shape.true_head),
            out_scale, HEADS=shape.heads, HEAD=shape.head, PAGES=self.places, PAGE=PAGE,
            SPLIT_PAGES=tile.split_pages, SPLITS=min(splits, 2),
            SPLITS_2=self._split_room(tile.split_pages), TILE=tile.positions, FP8=self._fp8,
            num_warps=tile.warps, **self._chained,
        )  # fmt: skip

    def _swiglu(self, rows: int, out: Tensor | None = None, out_scale: float = 1.0) -> None:
        hidden = self.shape.hidden
        block = divisor(hidden, 1024)
        swiglu[(hidden // block, rows)](
            self._gated, self._hidden if out is None else out, out_scale,
            HIDDEN=hidden, BLOCK=block, FP8=out is not None, num_warps=4, **self._chained,
        )  # fmt: skip

    def _heads(self, rows: int, plan: Tiles, x: Tensor, parts: int, pending: Tensor | None) -> None:
        """Text logits, and the temporal state's part of the depformer's inputs."""
        if pending is not None:
            self._norm(rows, x, pending)
            parts = 1
        width, weights = self.shape.true_width, self.weights
        self._linear(
            rows, plan.rows, plan.depth_in, x, weights.depth_in, self._depth_in, STORE, parts, width
        )
        self._linear(
            rows, plan.rows, plan.text, x, weights.text_head, self._logits, STORE, parts, width
        )

    def launch_depformer(self, rows: int) -> None:
        """The second part: draws the text and then the codes, and completes a frame."""
        plan = tiles(rows, fixed=self.fixed)
        config, depth, squares = self.config, self.depth, self._depth_squares
        normed_head = config.depformer_norm is not None
        width = depth.true_width
        for book, step in enumerate(self.weights.steps):
            self._draw(rows, book)
            parts = 1
            for index, layer in enumerate(step.layers):
                qkv = self._depth_qkv[index, book]
                self._linear(
                    rows, DEPTH_ROWS, plan.depth_qkv, self._depth_x, layer.qkv, qkv, STORE, parts,
                    width, squares,
                )  # fmt: skip
                heard = qkv[:, 2 * depth.attention :]
                if book:
                    self._attend_books(rows, index, book)
                    heard = self._depth_attention
                parts = self._depth_add(rows, plan.depth_out, heard, layer.out)
                self._linear(
                    rows, DEPTH_ROWS, plan.depth_gate, self._depth_x, layer.gate,
                    self._depth_hidden, SWIGLU, parts, width, squares,
                )  # fmt: skip
                parts = self._depth_add(rows, plan.depth_down, self._depth_hidden, layer.down)
            self._linear(
                rows, DEPTH_ROWS, plan.depth_head, self._depth_x, step.head, self._logits, STORE,
                parts if normed_head else 0, width, squares,
            )  # fmt: skip
        self._finish(rows)

    def _depth_add(self, rows: int, tile: Tile, y: Tensor, weight: Tensor) -> int:
        x, squares, width = self._depth_x, self._depth_squares, self.depth.true_width
        return self._linear(rows, DEPTH_ROWS, tile, y, weight, x, ADD, 0, width, squares)

    def _attend_books(self, rows: int, index: int, book: int) -> None:
        depth = self.depth
        group = divisor(depth.heads, 4)
        attend_books[(rows, depth.heads // group)](
            self._depth_qkv[index], self._depth_attention, book, self._depth_qkv.stride(1),
            WIDTH=depth.attention, HEADS=group, HEAD=depth.head,
            STEPS=power_of_two(self.config.books), scale=_LOG2_E / math.sqrt(depth.true_head),
            num_warps=4, **self._chained,
        )  # fmt: skip

    def _card(self, channel: int) -> dict[str, int]:
        """How logits of a channel's tokens are read."""
        card = self.config.card if channel else self.config.text_card
        return {
            "CARD": card,
            "CARD_2": power_of_two(card),
            "BITS": 16 if self.dtype == torch.bfloat16 else 32,
            "MADE": 1 + self.config.books,
            "LOGITS_STRIDE": self._logits.stride(0),
            "num_warps": 32 if card > 8192 else 4,
        }

    def _draw(self, rows: int, channel: int) -> None:
        depth, step, kind = self.depth, self.weights.steps[channel], min(channel, 1)
        draw[(rows,)](
            self._logits, self.slot, self.calls, self._keys,
            self._temperature[kind], self._kept[kind], self.forced, self._made,
            self._depth_in, step.source, step.embedding, self._depth_x, self._depth_squares,
            channel, INPUTS_STRIDE=self._depth_in.stride(0), WIDTH=depth.width,
            BLOCK=power_of_two(depth.width), STRIDE=PARTS, **self._card(channel), **self._chained,
        )  # fmt: skip

    def _finish(self, rows: int) -> None:
        config = self.config
        finish[(rows,)](
            self._logits, self.slot, self.calls, self._keys,
            self._temperature[1], self._kept[1], self.forced, self._made, self.tokens,
            self._delays, self.text, self.codes, self.heard_slot, self.trash, config.max_delay,
            CHANNELS=config.channels, COLUMNS=self._columns, **self._card(config.books),
            **self._chained,
        )  # fmt: skip
