"""Which slot rows a launch works on, and how their state is taken out and put back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Rows:
    """A set of slot rows, in the order of the batch.

    State tensors are [slots, ...]. A contiguous ascending run of rows is taken as a view, any
    other set by index. With `copy` it is always taken by index: a copy starts at an aligned
    address of its own, so that a row's arithmetic can't depend on which row it is.
    """

    __slots__ = ("copy", "index", "rows", "run")

    def __init__(
        self, rows: Sequence[int], device: torch.device | str = "cpu", *, copy: bool = False
    ) -> None:
        self.rows = tuple(rows)
        self.copy = copy
        self.index = torch.tensor(self.rows, dtype=torch.int64, device=device)
        first, count = (self.rows[0] if self.rows else 0), len(self.rows)
        contiguous = self.rows == tuple(range(first, first + count))
        self.run = slice(first, first + count) if contiguous and not copy else None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, state: Tensor) -> Tensor:
        """The rows of `state`: [slots, ...] -> [len(self), ...]. May be a view: see `put`."""
        return state[self.run] if self.run is not None else state.index_select(0, self.index)

    def put(self, state: Tensor, value: Tensor) -> None:
        """Writes `value` [len(self), ...] to the rows of `state`."""
        if self.run is not None:
            state[self.run] = value
        else:
            state.index_copy_(0, self.index, value)
