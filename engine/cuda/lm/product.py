"""Products of few rows: a residual stream's norm before them, or its sum after them, included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from engine.cuda.kernels.linear import ADD, STORE, linear
from engine.cuda.launch import chained
from engine.cuda.lm.plan import Tile
from engine.cuda.lm.weights import power_of_two

PARTS: Final = 256
"""Room for the parts of a row's sum of squares."""
_EPS: Final = 1e-8
_AHEAD: Final = 4
"""Cache lines of each weight row that are fetched while the kernel before ends."""


@dataclass(slots=True)
class Stream:
    """A residual stream as the launches so far leave it.

    Its norm is x / sqrt(sum of squares + floor). The sums come in parts, as the launch that made
    x left them.
    """

    x: Tensor
    """[rows, width]"""
    squares: Tensor
    """[rows, PARTS] float32"""
    true_width: int
    """Without the padding."""
    parts: int = 1
    """Of `squares`, that make a sum."""
    pending: Tensor | None = None
    """[rows, width]: what is still to be added to x."""

    @property
    def floor(self) -> float:
        """Of a sum of squares."""
        return self.true_width * _EPS


def project(
    rows: int,
    tile_rows: int,
    tile: Tile,
    stream: Stream,
    weight: Tensor,
    out: Tensor,
    *,
    epilogue: Any = STORE,
    normed: bool = True,
) -> None:
    """out [rows, n] = norm(stream) weight^T; see `linear` for SWIGLU. weight: [n, width].

    normed: False to take the stream as it is.
    """
    _linear(
        rows, tile_rows, tile, stream.x, weight, out, stream, epilogue,
        parts=stream.parts if normed else 0,
    )  # fmt: skip


def add(rows: int, tile_rows: int, tile: Tile, y: Tensor, weight: Tensor, stream: Stream) -> None:
    """Adds y weight^T to the stream. y: [rows, k]; weight: [width, k]."""
    stream.parts = _linear(rows, tile_rows, tile, y, weight, stream.x, stream, ADD, parts=0)


def product_options(tile_rows: int, fit: Tile, parts: int) -> dict[str, Any]:
    """What the kernels of products are told of their tiles, and of the sums of squares."""
    return {
        "PARTS": parts,
        "PARTS_2": power_of_two(parts),
        "STRIDE": PARTS,
        "TILE_M": tile_rows,
        "TILE_N": fit.n,
        "TILE_K": fit.k,
        "STAGES": fit.stages,
        "AHEAD": _AHEAD if fit.k >= 64 * _AHEAD or fit.k >= 128 else 0,
        "num_warps": fit.warps,
        **chained(True),
    }


def _linear(
    rows: int,
    tile_rows: int,
    tile: Tile,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    stream: Stream,
    epilogue: Any,
    *,
    parts: int,
) -> int:
    """Returns in how many parts ADD leaves the sums of squares."""
    n, k = weight.shape
    fit = tile.fit(n, k, wide=weight.itemsize > 2)
    row_tiles = -(-rows // tile_rows)
    linear[(row_tiles * (n // fit.n),)](
        x, x.stride(0), weight, out, out.stride(0), stream.squares, stream.squares,
        rows, row_tiles, stream.floor,
        N=n, K=k, EPILOGUE=epilogue, **product_options(tile_rows, fit, parts),
    )  # fmt: skip
    return n // fit.n
