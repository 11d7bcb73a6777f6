"""The depformer on a GPU: the text token of a frame, and its codes, a book after another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.cuda.kernels.attention import attend_books
from engine.cuda.kernels.linear import SWIGLU
from engine.cuda.kernels.tokens import draw, finish
from engine.cuda.launch import chained
from engine.cuda.lm.attention import LOG2_E
from engine.cuda.lm.plan import DEPTH_ROWS, Tiles, tiles
from engine.cuda.lm.product import PARTS, Stream, add, project
from engine.cuda.lm.state import SlotState
from engine.cuda.lm.weights import CudaLayer, CudaWeights, Shape, divisor, power_of_two


class Depformer:
    """A chain over the channels: each draws a token from logits, and the next begins with it."""

    def __init__(
        self,
        state: SlotState,
        weights: CudaWeights,
        *,
        rows: int,
        logits: Tensor,
        inputs: Tensor,
        fixed: bool,
    ) -> None:
        """rows: room for so many of a launch. logits: [rows, greatest card], first the text's,
        then every book's. inputs: [rows, sources * width], the temporal state's part.
        """
        config, dtype, device = state.config, weights.embedding.dtype, weights.embedding.device
        self._state, self._steps, self._fixed = state, weights.steps, fixed
        self._logits, self._inputs = logits, inputs
        self._shape = shape = Shape.depth(config)

        def zeros(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        self._made = zeros(rows, 1 + config.books, dtype=torch.int32)
        self._stream = Stream(
            zeros(rows, shape.width), zeros(rows, PARTS, dtype=torch.float32), shape.true_width
        )
        self._heard = zeros(rows, shape.attention)
        self._hidden = zeros(rows, shape.hidden)
        self._qkv = zeros(config.depformer_num_layers, config.books, rows, 3 * shape.attention)

    def call(
        self, rows: int, slot: Tensor, text: Tensor, codes: Tensor, heard_slot: Tensor
    ) -> None:
        """The tokens of a call of the slots `slot` [rows], and the frame that is then complete.

        text: [rows], -2 without a frame. codes: [rows, books]. heard_slot: [rows], `slot`, but
        the trash row without a frame. All int32.
        """
        plan = tiles(rows, fixed=self._fixed)
        normed = self._state.config.depformer_norm is not None
        for book, step in enumerate(self._steps):
            self._draw(rows, slot, book)
            for index, layer in enumerate(step.layers):
                self._layer(rows, plan, book, index, layer)
            project(
                rows, DEPTH_ROWS, plan.depth_head, self._stream, step.head, self._logits,
                normed=normed,
            )  # fmt: skip
        self._finish(rows, slot, text, codes, heard_slot)

    def _layer(self, rows: int, plan: Tiles, book: int, index: int, layer: CudaLayer) -> None:
        stream, qkv = self._stream, self._qkv[index, book]
        project(rows, DEPTH_ROWS, plan.depth_qkv, stream, layer.qkv, qkv)
        heard = qkv[:, 2 * self._shape.attention :]
        if book:
            self._attend(rows, index, book)
            heard = self._heard
        add(rows, DEPTH_ROWS, plan.depth_out, heard, layer.out, stream)
        project(
            rows, DEPTH_ROWS, plan.depth_gate, stream, layer.gate, self._hidden, epilogue=SWIGLU
        )
        add(rows, DEPTH_ROWS, plan.depth_down, self._hidden, layer.down, stream)

    def _attend(self, rows: int, index: int, book: int) -> None:
        shape = self._shape
        group = divisor(shape.heads, 4)
        attend_books[(rows, shape.heads // group)](
            self._qkv[index], self._heard, book, self._qkv.stride(1),
            WIDTH=shape.attention, HEADS=group, HEAD=shape.head,
            STEPS=power_of_two(self._state.config.books),
            scale=LOG2_E / math.sqrt(shape.true_head), num_warps=4, **chained(True),
        )  # fmt: skip

    def _draw(self, rows: int, slot: Tensor, channel: int) -> None:
        """Draws the token of a channel, and begins the step that follows from it."""
        shape, step, stream = self._shape, self._steps[channel], self._stream
        draw[(rows,)](
            *self._sampled(slot, channel),
            self._inputs, step.source, step.embedding, stream.x, stream.squares, channel,
            INPUTS_STRIDE=self._inputs.stride(0), WIDTH=shape.width,
            BLOCK=power_of_two(shape.width), STRIDE=PARTS, **self._card(channel), **chained(True),
        )  # fmt: skip
        stream.parts = 1

    def _finish(
        self, rows: int, slot: Tensor, text: Tensor, codes: Tensor, heard_slot: Tensor
    ) -> None:
        """Draws the last book's token, and completes a frame."""
        state = self._state
        config = state.config
        finish[(rows,)](
            *self._sampled(slot, config.books), state.tokens, state.delays,
            text, codes, heard_slot, state.trash, config.max_delay,
            CHANNELS=config.channels, COLUMNS=state.columns, **self._card(config.books),
            **chained(True),
        )  # fmt: skip

    def _sampled(self, slot: Tensor, channel: int) -> tuple[Tensor, ...]:
        """What a token of a channel is drawn from, and where to."""
        state, kind = self._state, min(channel, 1)
        return (
            self._logits, slot, state.calls, state.keys, state.temperature[kind],
            state.kept[kind], state.forced, self._made,
        )  # fmt: skip

    def _card(self, channel: int) -> dict[str, int]:
        """How logits of a channel's tokens are read."""
        config, logits = self._state.config, self._logits
        card = config.card if channel else config.text_card
        return {
            "CARD": card,
            "CARD_2": power_of_two(card),
            "BITS": 16 if logits.dtype == torch.bfloat16 else 32,
            "MADE": 1 + config.books,
            "LOGITS_STRIDE": logits.stride(0),
            "num_warps": 32 if card > 8192 else 4,
        }
