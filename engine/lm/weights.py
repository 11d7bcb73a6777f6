"""An RQ-transformer's weights, in the form that a step uses.

Matrices are stored [in, out]. Each norm's scale is multiplied into the matrices that read its
output, so that a norm is a division by the length of its vector: see `engine.lm.layer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.lm.config import LMConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """A transformer layer of width d."""

    qkv: Tensor
    """[d, 3 * d]"""
    out: Tensor
    """[d, d]"""
    gate: Tensor
    """[d, 2 * hidden]: what is passed through SiLU, then what it gates."""
    down: Tensor
    """[hidden, d]"""


@dataclass(frozen=True, slots=True)
class DepthStep:
    """The depformer at one codebook. Steps may share tensors."""

    source: int
    """Which part of `Weights.depth_in`."""
    layers: tuple[Layer, ...]
    embedding: Tensor
    """Of the token before: text at step 0, else the code of the book before."""
    head: Tensor
    """[depformer_dim, card]"""


@dataclass(frozen=True, slots=True)
class Weights:
    """All that serving needs."""

    embedding: Tensor
    """[rows, dim]: for each channel a row of zeros for token -1, then its tokens."""
    embedding_offsets: Tensor
    """[channels] int64: the row of each channel's token 0."""
    layers: tuple[Layer, ...]
    text_head: Tensor
    """[dim, text_card]"""
    depth_in: Tensor
    """[dim, sources * depformer_dim]"""
    steps: tuple[DepthStep, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, shared ones counted once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self._tensors()}.values())

    def _tensors(self) -> Iterable[Tensor]:
        yield from (self.embedding, self.embedding_offsets, self.text_head, self.depth_in)
        for step in self.steps:
            yield from (step.embedding, step.head)
        for layers in (self.layers, *(step.layers for step in self.steps)):
            for layer in layers:
                yield from (layer.qkv, layer.out, layer.gate, layer.down)


def load_weights(
    path: Path,
    config: LMConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """Reads a checkpoint in any of its published forms.

    Raises CheckpointError that names a tensor which is missing, unknown or misshapen.
    """
    return _Loader(Checkpoint(path, device=device), config, dtype).load()


class _Loader:
    def __init__(self, file: Checkpoint, config: LMConfig, dtype: torch.dtype) -> None:
        self.file = file
        self.config = config
        self.dtype = dtype
        self.sources = sorted(set(config.schedule[: config.books]))
        """Indices of the depformer weights that serving uses."""
        every = max(config.schedule) + 1
        whole = f"depformer_in.{every - 1}.weight" in file
        self.stored = every if whole else self.sources[-1] + 1
        """Depformer weights in the file: all, or only those that serving uses."""

    def load(self) -> Weights:
        config = self.config
        embedding, offsets = self._embedding()
        out_norm = self._scale("out_norm", config.dim)
        depth_in = [
            self._matrix(
                f"depformer_in.{source}.weight", config.depformer_dim, config.dim, out_norm
            )
            for source in self.sources
        ]
        weights = Weights(
            embedding=embedding,
            embedding_offsets=offsets,
            layers=tuple(self._layer(index) for index in range(config.num_layers)),
            text_head=self._matrix("text_linear.weight", config.text_card, config.dim, out_norm),
            depth_in=torch.cat(depth_in, dim=1),
            steps=self._steps(),
        )
        self._skip_unused()
        self.file.finish()
        return weights

    def _embedding(self) -> tuple[Tensor, Tensor]:
        dim, card, text_card = self.config.dim, self.config.card, self.config.text_card
        table: list[Tensor] = []
        offsets: list[int] = []
        rows = 0
        for channel in range(self.config.channels):
            name = f"emb.{channel - 1}" if channel else "text_emb"
            tokens = self._take(f"{name}.weight", (card if channel else text_card) + 1, dim)
            table += [tokens.new_zeros(1, dim), tokens]
            offsets.append(rows + 1)
            rows += 1 + len(tokens)
        embedding = torch.cat(table).to(self.dtype)
        return embedding, torch.tensor(offsets, device=embedding.device)

    def _layer(self, index: int) -> Layer:
        dim, hidden = self.config.dim, self.config.hidden
        name = f"transformer.layers.{index}"
        (qkv,) = self._projections(f"{name}.self_attn.in_proj", 3 * dim, dim, [0], 1)
        (out,) = self._projections(f"{name}.self_attn.out_proj", dim, dim, [0], 1)
        return Layer(
            qkv=self._ready(qkv, self._scale(f"{name}.norm1", dim)),
            out=self._ready(out),
            gate=self._matrix(
                f"{name}.gating.linear_in.weight",
                2 * hidden,
                dim,
                self._scale(f"{name}.norm2", dim),
            ),
            down=self._matrix(f"{name}.gating.linear_out.weight", dim, hidden),
        )

    def _steps(self) -> tuple[DepthStep, ...]:
        config = self.config
        layers = [self._depth_layers(index) for index in range(config.depformer_num_layers)]
        steps: list[DepthStep] = []
        for book, source in enumerate(config.schedule[: config.books]):
            place = self.sources.index(source)
            name, card = f"depformer_emb.{book - 1}", config.card
            if book == 0:
                name, card = "depformer_text_emb", config.text_card
            norm = None
            if config.depformer_norm is not None:
                norm = self._scale(f"depformer_norms.{book}", config.depformer_dim)
            steps.append(
                DepthStep(
                    source=place,
                    layers=tuple(layer[place] for layer in layers),
                    embedding=self._depth_embedding(name, card + 1),
                    head=self._matrix(
                        f"linears.{book}.weight", config.card, config.depformer_dim, norm
                    ),
                )
            )
        return tuple(steps)

    def _depth_layers(self, index: int) -> list[Layer]:
        """One depformer layer, with the weights of each of `sources`."""
        dim, hidden = self.config.depformer_dim, self.config.depformer_hidden
        name = f"depformer.layers.{index}"
        norm1, norm2 = self._scale(f"{name}.norm1", dim), self._scale(f"{name}.norm2", dim)
        in_proj = f"{name}.self_attn.in_proj"
        out_proj = f"{name}.self_attn.out_proj"
        qkv = self._projections(in_proj, 3 * dim, dim, self.sources, self.stored)
        out = self._projections(out_proj, dim, dim, self.sources, self.stored)
        return [
            Layer(
                qkv=self._ready(qkv[place], norm1),
                out=self._ready(out[place]),
                gate=self._matrix(
                    f"{name}.gating.{source}.linear_in.weight", 2 * hidden, dim, norm2
                ),
                down=self._matrix(f"{name}.gating.{source}.linear_out.weight", dim, hidden),
            )
            for place, source in enumerate(self.sources)
        ]

    def _depth_embedding(self, name: str, rows: int) -> Tensor:
        dim, rank = self.config.depformer_dim, self.config.depformer_low_rank_embeddings
        if rank is None:
            return self._take(f"{name}.weight", rows, dim).to(self.dtype)
        narrow = self._take(f"{name}.weight", rows, rank)
        return (narrow @ self._take(f"{name}.low_rank.weight", dim, rank).t()).to(self.dtype)

    def _projections(
        self, name: str, rows: int, columns: int, sources: Sequence[int], stored: int
    ) -> list[Tensor]:
        """An attention projection for each of `sources`: `stored` of them fused, or split."""
        fused = name + ("_weight" if name.endswith("in_proj") else ".weight")
        if fused in self.file:
            whole = self._take(fused, stored * rows, columns).view(stored, rows, columns)
            return [whole[source] for source in sources]
        return [self._take(f"{name}s.{source}.weight", rows, columns) for source in sources]

    def _matrix(self, name: str, rows: int, columns: int, scale: Tensor | None = None) -> Tensor:
        return self._ready(self._take(name, rows, columns), scale)

    def _ready(self, weight: Tensor, scale: Tensor | None = None) -> Tensor:
        """[out, in] -> [in, out], times what is folded into it: [in]."""
        folded = weight if scale is None else weight * scale
        return folded.t().to(self.dtype).contiguous()

    def _scale(self, norm: str, dim: int) -> Tensor:
        """A norm's scale of a vector of unit length: [dim]."""
        return self.file.take(f"{norm}.alpha", (1, 1, dim)).flatten() * math.sqrt(dim)

    def _take(self, name: str, rows: int, columns: int) -> Tensor:
        return self.file.take(name, (rows, columns))

    def _skip_unused(self) -> None:
        """Depformer steps of a file that serving doesn't run."""
        config = self.config
        steps = _any(range(config.books, config.dep_q))
        sources = _any(set(range(self.stored)) - set(self.sources))
        layers = _any(range(config.depformer_num_layers))
        self.file.skip(rf"linears\.{steps}\.weight")
        self.file.skip(rf"depformer_norms\.{steps}\.alpha")
        books = _any(range(config.books - 1, config.dep_q - 1))
        self.file.skip(rf"depformer_emb\.{books}\.(low_rank\.)?weight")
        self.file.skip(rf"depformer_in\.{sources}\.weight")
        layer = rf"depformer\.layers\.{layers}\."
        self.file.skip(rf"{layer}gating\.{sources}\.linear_(in|out)\.weight")
        self.file.skip(rf"{layer}self_attn\.(in|out)_projs\.{sources}\.weight")


def _any(numbers: Iterable[int]) -> str:
    """A regular expression of any of the numbers."""
    return f"({'|'.join(map(str, numbers)) or '(?!)'})"
