"""What is remembered of each slot: its tokens, how it samples, its keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cuda.lm.pages import PAGE
from engine.cuda.lm.weights import Shape
from engine.lm.config import LMConfig
from engine.sampling import Sampling, kept_tokens, seed_key

FREE = -2
"""A token that isn't forced."""


class SlotState:
    """A row for each slot and one more, the trash row, to which rows of a launch point that stand
    for nobody.
    """

    def __init__(
        self,
        config: LMConfig,
        *,
        slots: int,
        pages: int,
        places: int,
        context: int,
        kv: torch.dtype,
        device: torch.device,
    ) -> None:
        """slots: without the trash row. pages: of the pool; `places` of them make a slot's ring,
        of which the last `context` positions are seen.
        """
        self.config = config
        self.slots = slots
        self.places = places
        self.context = context
        self.columns = config.max_delay + 2
        """Columns of tokens that are remembered."""
        rows, i32 = slots + 1, torch.int32
        initial = torch.full((config.channels,), config.card, dtype=i32)
        initial[0] = config.text_card
        self.initial = initial.to(device)
        """[channels]: the tokens before the first frame."""
        self.delays = torch.tensor(config.delays, dtype=i32, device=device)
        """[channels]"""
        self.calls = torch.zeros(rows, dtype=i32, device=device)
        """[slots + 1]: the number of each slot's next call."""
        self.tokens = self.initial[:, None].repeat(rows, 1, self.columns)
        """[slots + 1, channels, columns]"""
        self.forced = torch.full((rows, 1 + config.books), FREE, dtype=i32, device=device)
        """[slots + 1, 1 + books]: tokens of the next call that aren't to be drawn."""
        self.keys = torch.zeros(rows, dtype=torch.int64, device=device)
        """[slots + 1]: what the draws are hashed from."""
        self.temperature = torch.ones(2, rows, device=device)
        """[2 (text, audio), slots + 1]"""
        self.kept = torch.ones(2, rows, dtype=i32, device=device)
        """[2 (text, audio), slots + 1]: how many tokens can be drawn."""
        for row in range(rows):
            self.set_sampling(row, Sampling())
        shape = Shape.temporal(config)
        # Behind the pool: a page of zeros, where a ring has none, and the trash row's.
        self.kv = torch.zeros(
            config.num_layers, 2, pages + 2, shape.heads, PAGE, shape.head, dtype=kv, device=device
        )
        """[layers, 2 (key, value), pages + 2, heads, PAGE, head]"""
        self.table = torch.full((rows, places), pages, dtype=i32, device=device)
        """[slots + 1, places]: the page at each place of a slot's ring."""
        self.table[self.trash] = pages + 1

    @staticmethod
    def page_bytes(config: LMConfig, kv: torch.dtype) -> int:
        """Bytes of a page: `PAGE` positions of all layers."""
        return config.num_layers * 2 * Shape.temporal(config).attention * PAGE * kv.itemsize

    @property
    def trash(self) -> int:
        """The row of nobody."""
        return self.slots

    def set_sampling(self, slot: int, sampling: Sampling) -> None:
        """Gives a slot its sampling parameters, until it is reset."""
        config = self.config
        self.keys[slot] = seed_key(sampling.seed)
        for kind, temperature, top_k, card in (
            (0, sampling.text_temperature, sampling.text_top_k, config.text_card),
            (1, sampling.audio_temperature, sampling.audio_top_k, config.card),
        ):
            self.temperature[kind, slot] = temperature or 1.0
            self.kept[kind, slot] = kept_tokens(temperature, top_k, card)

    def reset(self, slots: Tensor) -> None:
        """Makes slots [n] int64 as new; their pages are the owner's matter."""
        self.calls.index_fill_(0, slots, 0)
        self.forced.index_fill_(0, slots, FREE)
        fresh = self.initial[:, None].expand(len(slots), -1, self.columns)
        self.tokens.index_copy_(0, slots, fresh)

    def begin(self, slot: int, call: int, column: Tensor, forced: Tensor) -> None:
        """Puts a slot before call `call`, whose column [channels] and forced tokens [1 + books]
        are given.
        """
        phase = call % self.columns
        self.tokens[slot, :, phase] = column.to(self.tokens)
        self.forced[slot] = forced.to(self.forced)
        self.calls[slot] = call
