"""The launches of Mimi's quantiser: latents to codes, and codes to a latent."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cuda.kernels import mimi_quantizer
from engine.cuda.launch import chained
from engine.cuda.mimi.chain import Chain, Launch, Windows
from engine.cuda.mimi.conv import convolve
from engine.cuda.mimi.tiles import NARROWEST, wide
from engine.cuda.mimi.weights import Matrix, padded
from engine.mimi.codec import Mimi


def quantise(chain: Chain, mimi: Mimi, latents: Windows, codes: Tensor) -> None:
    """Appends what makes codes [max_rows, books] int32 of latents: a product, then the books."""
    config = mimi.config.quantizer
    books, bins, dim = mimi.books, wide(config.bins), wide(config.dimension)
    projected = _project(chain, mimi, latents)
    tables = torch.stack(
        [padded(book.vectors, bins, dim) for part in mimi.quantizer.chains for book in part]
    )
    half_norms = tables.square().sum(2) / 2
    half_norms[:, config.bins :] = torch.inf
    left = chain.zeros(2, chain.max_rows, dim, dtype=torch.float32)
    distance = chain.zeros(books, chain.max_rows, bins // NARROWEST, dtype=torch.float32)
    entry = chain.zeros(books, chain.max_rows, bins // NARROWEST, dtype=torch.int32)
    precision = "ieee" if chain.dtype == torch.float32 else "tf32x3"
    options = chain.options | {"PRECISION": precision}
    last = books - 1

    def tile_n(rows: int) -> int:
        return min(bins, 16 if rows <= 16 and not chain.fixed else 64)

    def launch_step(step: int) -> Launch:
        def launch(rows: int, slot: Tensor) -> None:
            n = tile_n(rows)
            grid = (-(-rows // 16) * (bins // n), 2 if step == 0 and books > 1 else 1)
            mimi_quantizer.nearest[grid](
                projected,
                left,
                tables,
                half_norms,
                distance,
                entry,
                codes,
                rows,
                chain.max_rows,
                step,
                STEP=min(step, 2),
                BOOKS=books,
                BINS=bins,
                DIM=dim,
                TILE_M=16,
                TILE_N=n,
                TILE_K=min(dim, 64),
                num_warps=4,
                **options,
            )

        return launch

    chain.launches += [launch_step(step) for step in range(max(last, 1))]
    finish = chained(True)

    def launch(rows: int, slot: Tensor) -> None:
        mimi_quantizer.finish_codes[(rows,)](
            distance,
            entry,
            codes,
            slot,
            chain.frames,
            chain.max_rows,
            BOOKS=books,
            BINS=bins,
            LAST=last,
            PARTS=bins // tile_n(rows),
            num_warps=1,
            **finish,
        )

    chain.launches.append(launch)


def _project(chain: Chain, mimi: Mimi, latents: Windows) -> Tensor:
    """Appends the strided convolution and the quantiser's projections, which are one matrix.

    Returns what they write, [max_rows, 2 * dim] float32: the first book's vectors and the others'.
    """
    into, config, downsample = mimi.quantizer.into, mimi.config.quantizer, mimi.downsample
    dim, kernel = wide(config.dimension), downsample.kernel
    weight = (downsample.weight.double() @ into.double()).float()
    weight = weight.view(kernel, -1, 2, config.dimension).permute(2, 3, 0, 1)
    weight = padded(weight, 2, dim, kernel, latents.channels).flatten(2)
    matrix = Matrix(weight.flatten(0, 1).to(chain.dtype), None, 0)
    projected = chain.zeros(chain.max_rows, 2 * dim, dtype=torch.float32)
    convolve(chain, latents, matrix, Windows(projected, 1, 2 * dim, None))
    return projected


class Dequantiser:
    """The first launch of a decoder, and the only one that is told where its codes are."""

    def __init__(self, chain: Chain, mimi: Mimi, x: Tensor, memory: Tensor) -> None:
        """x: [max_rows * latents, dim] float32, which is written. memory: [slots, 2, dim], the
        latents of the frames before.
        """
        dim, table = x.shape[1], mimi.quantizer.table
        self._chain, self._books, self._bins, self._x = chain, mimi.books, mimi.bins, x
        self._latents, self._memory = mimi.config.latents, memory
        self._table = padded(table, table.shape[0], dim)
        self._upsample = padded(mimi.upsample, mimi.upsample.shape[0], dim).to(chain.dtype)

    def __call__(self, rows: int, slot: Tensor, codes: Tensor) -> None:
        """The latents of codes [max_rows, books] int32, upsampled."""
        mimi_quantizer.dequantise[(rows,)](
            codes,
            self._table,
            self._upsample,
            self._x,
            self._memory,
            slot,
            self._chain.frames,
            BOOKS=self._books,
            BINS=self._bins,
            DIM=self._x.shape[1],
            STEPS=self._latents,
            MEMORY_SIDE=self._memory.stride(1),
            MEMORY_SLOT=self._memory.stride(0),
            num_warps=4,
            **chained(False),
        )
