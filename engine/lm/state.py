"""Everything that an RQ-transformer remembers of its sessions, a slot row for each."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.grid import TokenGrid
from engine.ring import RingKV
from engine.rows import Rows
from engine.sampling import RowSampling, Sampling


class LMState:
    """The rows' rings, token grids, call counters and sampling parameters."""

    def __init__(
        self,
        config: LMConfig,
        slots: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.slots = slots
        self.device = device
        self.ring = RingKV(
            config.num_layers,
            slots,
            config.num_heads,
            config.context,
            config.head_dim,
            device=device,
            dtype=dtype,
        )
        self.grid = TokenGrid(config, slots, device)
        self.sampling = RowSampling(slots, config.text_card, config.card, config.books, device)
        self.calls = torch.zeros(slots, dtype=torch.int64, device=device)
        """[slots]: the number of each row's next call."""
        self.seen = [0] * slots
        """The same on the host."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' rings and tokens."""
        return self.ring.nbytes + self.grid.tokens.nbytes

    def set_sampling(self, row: int, sampling: Sampling) -> None:
        """Gives a row its sampling parameters, until it is reset."""
        self.sampling.set(row, sampling)

    @torch.inference_mode()
    def reset(self, rows: Rows) -> None:
        """Makes the rows as new."""
        self.ring.reset(rows)
        self.grid.reset(rows)
        self.sampling.reset(rows)
        self.calls.index_fill_(0, rows.index, 0)
        for row in rows.rows:
            self.seen[row] = 0

    def begin(self, rows: Rows, call: int, column: Tensor) -> None:
        """Puts rows before call number `call`, whose column [channels] is given."""
        self.calls.index_fill_(0, rows.index, call)
        places = self.grid.places(rows, rows.take(self.calls))
        self.grid.write(places.column, column.expand(len(rows), -1))
        for row in rows.rows:
            self.seen[row] = call
