"""The split residual vector quantiser: one book beside a chain of books, on the same latent."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.mimi.config import QuantizerConfig

MIN_USAGE = 1e-5


class Book:
    """One codebook."""

    def __init__(self, checkpoint: Checkpoint, name: str, config: QuantizerConfig) -> None:
        usage = checkpoint.take(f"{name}._codebook.cluster_usage", (config.bins,))
        total = checkpoint.take(f"{name}._codebook.embedding_sum", (config.bins, config.dimension))
        self.vectors = total / usage.clamp(min=MIN_USAGE)[:, None]
        """[bins, dimension]"""
        self._transposed = self.vectors.t().contiguous()
        self._half_norms = self.vectors.square().sum(1) / 2

    @property
    def weights(self) -> list[Tensor]:
        """Its tensors."""
        return [self.vectors, self._transposed, self._half_norms]

    def nearest(self, x: Tensor) -> Tensor:
        """The entry at the least Euclidean distance: [n, dimension] -> [n] int64."""
        # |x - e|^2 / 2 without |x|^2 / 2, which is the same for all entries.
        return torch.addmm(self._half_norms, x, self._transposed, alpha=-1).argmin(1)


class Quantizer:
    """Latents to codes and back, in fp32: a rounded distance is another code."""

    def __init__(self, checkpoint: Checkpoint, config: QuantizerConfig, books: int) -> None:
        self.books = books
        into: list[Tensor] = []
        tables: list[Tensor] = []
        self.chains: list[list[Book]] = []
        """One book, and the others, each of which quantises what those before it leave."""
        for name, count in (("rvq_first", 1), ("rvq_rest", books - 1)):
            prefix = f"quantizer.{name}"
            into.append(
                checkpoint.take(
                    f"{prefix}.input_proj.weight", (config.dimension, config.input_dimension, 1)
                )
            )
            out = checkpoint.take(
                f"{prefix}.output_proj.weight", (config.output_dimension, config.dimension, 1)
            )
            chain = [
                Book(checkpoint, f"{prefix}.vq.layers.{index}", config) for index in range(count)
            ]
            self.chains.append(chain)
            tables += [book.vectors @ out[:, :, 0].t() for book in chain]
        for index in range(books - 1, config.n_q - 1):
            checkpoint.skip(rf"quantizer\.rvq_rest\.vq\.layers\.{index}\._codebook\..*")
        checkpoint.skip(r"quantizer\..*\._codebook\._initialized")
        self.into = torch.cat(into)[:, :, 0].t().contiguous()
        """[input_dimension, 2 * dimension]"""
        self.table = torch.cat(tables)
        """[books * bins, output_dimension]: what an entry adds to the latent."""
        self._bases = torch.arange(books, device=self.table.device) * config.bins

    @property
    def weights(self) -> list[Tensor]:
        """Its tensors."""
        books = [tensor for chain in self.chains for book in chain for tensor in book.weights]
        return [self.into, self.table, self._bases, *books]

    def encode(self, latents: Tensor) -> Tensor:
        """[n, input_dimension] fp32 -> [n, books] int64."""
        codes: list[Tensor] = []
        for left, chain in zip((latents @ self.into).chunk(2, 1), self.chains, strict=True):
            for book in chain:
                code = book.nearest(left)
                left = left - F.embedding(code, book.vectors)
                codes.append(code)
        return torch.stack(codes, 1)

    def decode(self, codes: Tensor) -> Tensor:
        """[n, books] int64, each in 0..bins - 1 -> [n, output_dimension] fp32."""
        return F.embedding_bag(codes + self._bases, self.table, mode="sum")
