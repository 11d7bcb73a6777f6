"""The token grid: channels by columns, each channel's frames late by its delay.

Each slot row keeps the last max_delay + 2 columns in a ring. Call o of a row writes the user's
frame o at column o + delay, reads column o, writes what the model made at column o + 1, and gives
the frame that is then complete: frame o + 1 - max_delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.rows import Rows


@dataclass(frozen=True, slots=True)
class Places:
    """Where the calls of one step read and write."""

    user: Tensor
    """[n, books] int64, into all tokens, like the others."""
    column: Tensor
    """[n, channels]"""
    made: Tensor
    """[n, 1 + books]"""
    given: Tensor
    """[n, 1 + books]"""


class TokenGrid:
    """The newest columns of every slot row."""

    def __init__(self, config: LMConfig, slots: int, device: torch.device | str = "cpu") -> None:
        made, modulus = 1 + config.books, config.max_delay + 2
        self._sizes = [config.books, config.channels, made, made]
        self._modulus = modulus
        self.delays = torch.tensor(config.delays, device=device)
        """[channels]"""
        self.initial = torch.full((config.channels,), config.card, device=device)
        """[channels] int64: the tokens before the first frame."""
        self.initial[0] = config.text_card
        self.tokens = self.initial[:, None].repeat(slots, 1, modulus)
        """[slots, channels, max_delay + 2] int64"""
        self._flat = self.tokens.view(-1)
        phase = torch.arange(modulus, device=device)[:, None]
        late = phase + self.delays
        columns = torch.cat(
            (
                late[:, made:],
                phase.expand_as(late),
                (phase + 1).expand(-1, made),
                late[:, :made] + 1 - config.max_delay,
            ),
            dim=1,
        )
        channels = torch.arange(config.channels, device=device)
        owners = torch.cat((channels[made:], channels, channels[:made], channels[:made]))
        self._table = owners * modulus + columns % modulus

    def places(self, rows: Rows, calls: Tensor) -> Places:
        """Where call number `calls` [n] of each row reads and writes."""
        cells = self._table.index_select(0, calls % self._modulus)
        cells += rows.index[:, None] * self.tokens[0].numel()
        return Places(*torch.split(cells, self._sizes, dim=1))

    def read(self, places: Tensor) -> Tensor:
        """The tokens at `places`, in its shape."""
        return self._flat.take(places)

    def write(self, places: Tensor, tokens: Tensor) -> None:
        """Puts tokens at `places`."""
        self._flat.put_(places, tokens)

    def reset(self, rows: Rows) -> None:
        """Back to the initial tokens."""
        self.tokens.index_copy_(
            0, rows.index, self.initial[:, None].expand(len(rows), -1, self._modulus)
        )
