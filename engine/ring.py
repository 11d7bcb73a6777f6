"""Keys and values of the last positions of each slot row, in a ring.

The owner counts the positions of its rows. A step first makes one `Span`, good for every layer,
then calls `attend` once a layer, which writes the step's keys and values and attends to the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.rows import Rows


@dataclass(frozen=True, slots=True)
class Span:
    """The T positions that a step appends to each of its rows, and what their queries see."""

    rows: Rows
    positions: Tensor
    """[n, T] int64, absolute."""
    cells: Tensor
    """[n * T] int64: the cell of each position among all cells of a layer."""
    used: int
    """Only the first `used` cells of a row can hold a visible position."""
    mask: Tensor | None
    """[n, 1, T, used], added to the scores: 0 or -inf. None: all that is used is visible."""


class RingKV:
    """A ring of `context` positions for each layer and slot row.

    The T positions of a step are all written before any of its queries attends, so a query at
    position q sees the positions p with `last written - context < p <= q`: in a step of two
    positions on a full ring the first query sees context - 1 keys.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        context: int,
        head_dim: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.context = context
        self.kv = torch.zeros(
            layers, slots, context, 2, heads, head_dim, device=device, dtype=dtype
        )
        """[layers, slots, context, 2 (key, value), heads, head_dim]"""
        self._cells = self.kv.flatten(1, 2)
        self._order = torch.arange(context, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.kv.nbytes

    def span(
        self, rows: Rows, offsets: Tensor, length: int = 1, seen: Sequence[int] | None = None
    ) -> Span:
        """Plans a step of `length` positions for each of `rows`.

        offsets: [n] int64, the positions already appended to each row. seen: the same numbers on
        the host, if the owner has them: then only the used cells are touched, and no mask is made
        where none is needed. Raises ValueError if `length` doesn't fit the ring.
        """
        if not 1 <= length <= self.context:
            raise ValueError(f"a step of {length} positions doesn't fit a ring of {self.context}")
        positions = offsets[:, None] + self._order[:length]
        cells = (positions % self.context).add_(rows.index[:, None], alpha=self.context)
        filled = [min(count + length, self.context) for count in seen] if seen else []
        used = max(filled, default=self.context)
        even = bool(filled) and min(filled) == used
        mask = None if length == 1 and even else self._mask(positions, used)
        return Span(rows, positions, cells.flatten(), used, mask)

    def _mask(self, positions: Tensor, used: int) -> Tensor:
        last = positions[:, -1:]
        held = last - (last - self._order[:used]) % self.context
        hidden = (held < 0)[:, None, None] | (held[:, None, None] > positions[:, None, :, None])
        mask = torch.zeros(hidden.shape, device=self.kv.device, dtype=self.kv.dtype)
        return mask.masked_fill_(hidden, -torch.inf)

    def attend(self, layer: int, span: Span, query: Tensor, kv: Tensor) -> Tensor:
        """Writes the span's keys and values, then attends with scale 1 / sqrt(head_dim).

        query: [n, T, heads, head_dim]; kv: [n, T, 2, heads, head_dim], keys already rotated.
        Returns [n, T, heads * head_dim].
        """
        self._cells[layer].index_copy_(0, span.cells, kv.flatten(0, 1))
        cells = span.rows.take(self.kv[layer, :, : span.used])
        keys, values = cells.permute(2, 0, 3, 1, 4).unbind(0)
        heard = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=span.mask
        )
        return heard.transpose(1, 2).flatten(2)

    def reset(self, rows: Rows) -> None:
        """Forgets the rows: their cells become zero."""
        self.kv.index_fill_(1, rows.index, 0)

    def save(self, row: int, length: int) -> Tensor:
        """A copy of a row's first `length` cells: [layers, length, 2, heads, head_dim]."""
        return self.kv[:, row, :length].clone()

    def load(self, row: int, saved: Tensor) -> None:
        """Writes what `save` gave to the first cells of a row."""
        self.kv[:, row, : saved.shape[1]] = saved
