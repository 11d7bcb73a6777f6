"""The inputs, outputs and launches of a call, and of a prompt's positions."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engine.api import EngineError
from engine.cuda.lm.depformer import Depformer
from engine.cuda.lm.plan import NARROWEST
from engine.cuda.lm.product import PARTS
from engine.cuda.lm.state import SlotState
from engine.cuda.lm.temporal import Temporal
from engine.cuda.lm.weights import CudaWeights, Shape
from engine.lm.config import LMConfig

PREFILL_ROWS: Final = 128
"""Positions of a prompt in one launch."""
_MOST_TOKENS: Final = 1 << 19
"""Of a vocabulary, which is counted in 20 bits when it is drawn from."""


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
    """A chain of launches makes a frame: `slot` and `user` go in, `text`, `codes` and `heard_slot`
    come out.
    """

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
        """slots, pages, places, context: see `SlotState`. kv: the type of keys and values. fixed:
        a row's numbers don't depend on how many rows there are.

        Raises EngineError for a model that is too large.
        """
        check_sizes(config)
        self.config = config
        self.weights = weights
        self.max_rows = max_rows
        self.prefill_rows = prefill_rows
        self.device = device = weights.embedding.device
        self.state = SlotState(
            config,
            slots=slots,
            pages=pages,
            places=places,
            context=context,
            kv=kv,
            device=device,
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        nobody, dtype = self.state.trash, weights.embedding.dtype
        self.slot = zeros(max_rows).fill_(nobody)
        """[max_rows]: the state row of each row of a launch."""
        self.user = zeros(max_rows, config.books)
        """[max_rows, books]: the user's codes."""
        self.text = zeros(max_rows)
        """[max_rows]: the text token of the frame that is complete, -2 if none is."""
        self.codes = zeros(max_rows, config.books)
        """[max_rows, books]: its codes."""
        self.heard_slot = zeros(max_rows).fill_(nobody)
        """[max_rows]: `slot`, but the trash row where no frame is complete."""
        self.prompt_slot = zeros(prefill_rows).fill_(nobody)
        """[prefill_rows]: as `slot`, for a prompt's launch."""
        self.prompt_position = zeros(prefill_rows)
        """[prefill_rows]"""
        self.prompt_x = zeros(prefill_rows, Shape.temporal(config).width, dtype=dtype)
        """[prefill_rows, width]: inputs of a prompt's positions."""

        rows = max(max_rows, prefill_rows)
        card = max(len(weights.text_head), *(len(step.head) for step in weights.steps))
        logits = zeros(rows, card, dtype=dtype)
        depth_in = zeros(rows, len(weights.depth_in), dtype=dtype)
        self._temporal = Temporal(
            self.state, weights, rows=rows, logits=logits, depth_in=depth_in, fixed=fixed
        )
        self._depformer = Depformer(
            self.state, weights, rows=rows, logits=logits, inputs=depth_in, fixed=fixed
        )

    def launch(self, rows: int, splits: int) -> None:
        """A call of the first `rows` rows of `slot`; `splits` are as many as the oldest needs."""
        self.launch_temporal(rows, splits)
        self.launch_depformer(rows)

    def launch_temporal(self, rows: int, splits: int) -> None:
        """The first part of a call: up to the logits of the text."""
        self._temporal.call(rows, splits, self.slot, self.user)

    def launch_depformer(self, rows: int) -> None:
        """The second part: draws the text and then the codes, and completes a frame."""
        self._depformer.call(rows, self.slot, self.text, self.codes, self.heard_slot)

    def launch_prompt(self, splits: int) -> None:
        """Appends `prefill_rows` given positions to their slots' rings, and makes nothing."""
        self._temporal.append(self.prompt_x, self.prompt_slot, self.prompt_position, splits)
