"""What Mimi's two directions have in common."""

from __future__ import annotations

from torch import Tensor

from engine.cuda.mimi.chain import Chain
from engine.cuda.mimi.transformer import CudaTransformer
from engine.mimi.config import MimiConfig


class Direction:
    """A chain of launches with a transformer in it, and what both remember of each slot."""

    def __init__(self, chain: Chain, config: MimiConfig) -> None:
        self.chain = chain
        self.transformer = CudaTransformer(chain, config.transformer, config.latents)

    def reset(self, slots: Tensor) -> None:
        """Makes state rows as new. slots: [n] int64."""
        self.chain.frames.index_fill_(0, slots, 0)
        self.chain.memory.index_fill_(0, slots, 0)
        self.transformer.ring.index_fill_(1, slots, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots' state."""
        return self.chain.frames.nbytes + self.chain.memory.nbytes + self.transformer.ring.nbytes
