"""One direction's launches, in their order, and the buffers and memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.cuda.launch import chained
from engine.cuda.mimi.tiles import FIXED_ROWS, NARROWEST

Launch = Callable[[int, Tensor], None]
"""Enqueues a kernel for the first rows of the batch, whose state rows it is told."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A batch buffer that a convolution reads: see `engine.cuda.kernels.mimi_conv`."""

    data: Tensor
    """[max_rows, kept + length]"""
    steps: int
    channels: int
    memory: Tensor | None
    """[slots, 2, kept] of the slots' memory."""

    @property
    def length(self) -> int:
        """Numbers of a frame."""
        return self.steps * self.channels

    @property
    def kept(self) -> int:
        """Numbers kept from the frames before."""
        return self.data.shape[1] - self.length

    @property
    def sides(self) -> dict[str, int]:
        """Distances in the memory."""
        memory = self.memory
        side, slot = (memory.stride(1), memory.stride(0)) if memory is not None else (0, 0)
        return {"KEPT": self.kept, "MEMORY_SIDE": side, "MEMORY_SLOT": slot}


class Chain:
    """Launches are appended once, when the codec is made, and enqueued for every frame."""

    def __init__(
        self, slots: int, max_rows: int, *, dtype: torch.dtype, device: torch.device, fixed: bool
    ) -> None:
        """slots: rows of state. fixed: tiles don't depend on the rows of a launch."""
        self.slots, self.max_rows, self.dtype, self.device = slots, max_rows, dtype, device
        self.fixed = fixed
        self.options: dict[str, Any] = {**chained(True), "PRECISION": "ieee"}
        """Launch options of all kernels of a frame but its first one.

        That one waits for all before it: what the others read before they wait, the state and the
        weights, is settled then.
        """
        self.launches: list[Launch] = []
        self.frames = torch.zeros(slots, dtype=torch.int32, device=device)
        """[slots], frames seen."""
        self.memory = self.zeros(0)
        """[slots, numbers], inputs of the convolutions, in two sides each."""

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """On the device, of the working dtype."""
        return torch.zeros(*shape, dtype=dtype or self.dtype, device=self.device)

    def reserve(self, *kept: int) -> list[Tensor]:
        """Makes the memory: a view [slots, 2, kept] for each."""
        sizes = [-(-2 * count // NARROWEST) * NARROWEST for count in kept]
        self.memory = self.zeros(self.slots, sum(sizes))
        parts = self.memory.split_with_sizes(sizes, 1)
        return [
            part[:, : 2 * count].view(self.slots, 2, count)
            for part, count in zip(parts, kept, strict=True)
        ]

    def windows(self, steps: int, channels: int, memory: Tensor | None = None) -> Windows:
        """A buffer of `steps` times `channels` numbers behind what `memory` keeps."""
        kept = 0 if memory is None else memory.shape[2]
        return Windows(self.zeros(self.max_rows, kept + steps * channels), steps, channels, memory)

    def tiled(self, rows: int, steps: int) -> int:
        """For how many windows tiles are chosen, where `rows` rows have `steps` each."""
        return (FIXED_ROWS if self.fixed else rows) * steps

    def run(self, rows: int, slot: Tensor) -> None:
        """Enqueues all launches for the first `rows` rows, whose states are `slot` [rows]."""
        for launch in self.launches:
            launch(rows, slot)
