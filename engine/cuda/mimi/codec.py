"""Mimi's two directions, for the slot rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cuda.mimi.chain import Chain
from engine.cuda.mimi.decoder import Decoder
from engine.cuda.mimi.encoder import Encoder
from engine.mimi.codec import Mimi


class CudaMimi:
    """What `engine.mimi.codec.Mimi` computes, for up to `max_rows` rows at once.

    Made of its weights, on its device. slots: rows of state, a trash row included. fixed: a row's
    numbers don't depend on how many rows there are. encode and decode may be captured in a CUDA
    graph; each takes the next frame of every row it is told.
    """

    def __init__(
        self,
        mimi: Mimi,
        slots: int,
        max_rows: int,
        *,
        dtype: torch.dtype = torch.float16,
        fixed: bool = False,
    ) -> None:
        frame_size, books, device = mimi.frame_size, mimi.books, mimi.upsample.device
        self.pcm = torch.zeros(max_rows, frame_size, device=device)
        """[max_rows, frame_size] float32, what `encode` takes."""
        self.codes = torch.zeros(max_rows, books, dtype=torch.int32, device=device)
        """[max_rows, books] int32, what `encode` gives."""
        self.sound = torch.zeros(max_rows, frame_size, device=device)
        """[max_rows, frame_size] float32 in [-1, 1], what `decode` gives."""
        one, other = (
            Chain(slots, max_rows, dtype=dtype, device=device, fixed=fixed) for _ in range(2)
        )
        self._encoder = Encoder(one, mimi, self.pcm, self.codes)
        self._decoder = Decoder(other, mimi, self.sound)
        self._slots = slots

    def encode(self, rows: int, slot: Tensor) -> None:
        """The codes of `pcm`, for the first `rows` rows, whose states are `slot` [rows] int32."""
        self._encoder.encode(rows, slot)

    def decode(self, rows: int, slot: Tensor, codes: Tensor) -> None:
        """The sound of `codes` [max_rows, books] int32, likewise."""
        self._decoder.decode(rows, slot, codes)

    def reset(self, slots: Tensor) -> None:
        """Makes state rows as new. slots: [n] int64."""
        self._encoder.reset(slots)
        self._decoder.reset(slots)

    @property
    def nbytes_per_slot(self) -> int:
        """Bytes of one slot's state."""
        return (self._encoder.nbytes + self._decoder.nbytes) // self._slots
