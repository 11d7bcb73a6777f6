"""Which tiles a launch uses, by its number of rows."""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.cuda.lm.weights import divisor


class Tile(NamedTuple):
    """A product's tile of the weight, and how a program works on it."""

    n: int
    k: int
    warps: int
    stages: int

    def fit(self, n: int, k: int, *, wide: bool) -> Tile:
        """The same within a weight [n, k]; `wide`: of four-byte numbers, which need more room."""
        stages = min(self.stages, 2) if wide else self.stages
        return Tile(divisor(n, self.n), divisor(k, self.k), self.warps, stages)


NARROWEST: Final = 16
"""Outputs of the narrowest of the tiles below: each leaves a part of a row's sum of squares."""
DEPTH_ROWS: Final = 64
"""Of a tile of the depformer's input, be there so many or one: chained launches of this shape
overlap best."""


class AttentionTile(NamedTuple):
    """How a program attends."""

    positions: int
    """Of a tile."""
    warps: int
    split_pages: int
    """Pages of a split, which is a program."""


class Tiles(NamedTuple):
    """The products of one launch. None: the library's product, with kernels between."""

    rows: int
    """Of a tile of the temporal transformer's input; the depformer's has `DEPTH_ROWS`."""
    qkv: Tile | None
    out: Tile | None
    gate: Tile | None
    down: Tile | None
    text: Tile
    depth_in: Tile
    depth_qkv: Tile
    depth_out: Tile
    depth_gate: Tile
    depth_down: Tile
    depth_head: Tile
    attention: AttentionTile
    """For keys and values of two bytes or more."""
    attention_fp8: AttentionTile


_DEPTH: Final = {
    "depth_qkv": Tile(32, 128, 4, 4),
    "depth_out": Tile(16, 256, 4, 3),
    "depth_gate": Tile(64, 128, 4, 4),
    "depth_down": Tile(16, 256, 4, 4),
    "depth_head": Tile(16, 256, 4, 3),
}
"""Good for any number of rows: the chain of launches is what takes the time."""
_FEW: Final = Tiles(
    rows=16,
    qkv=Tile(32, 128, 4, 6),
    out=Tile(16, 256, 2, 6),
    gate=Tile(64, 128, 4, 4),
    down=Tile(32, 256, 4, 6),
    text=Tile(64, 256, 4, 3),
    depth_in=Tile(32, 128, 4, 6),
    **_DEPTH,
    attention=AttentionTile(32, 2, 4),
    attention_fp8=AttentionTile(64, 2, 8),
)
_ONE: Final = _FEW._replace(
    attention=AttentionTile(32, 2, 2), attention_fp8=AttentionTile(64, 2, 2)
)
_MANY: Final = Tiles(
    rows=64,
    qkv=None,
    out=None,
    gate=None,
    down=None,
    text=Tile(128, 64, 8, 4),
    depth_in=Tile(64, 64, 4, 5),
    **_DEPTH,
    attention=AttentionTile(16, 4, 4),
    attention_fp8=AttentionTile(32, 1, 8),
)
_FIXED: Final = _MANY._replace(
    qkv=Tile(64, 64, 4, 5),
    out=Tile(64, 128, 4, 4),
    gate=Tile(64, 128, 4, 4),
    down=Tile(64, 128, 4, 4),
)


def tiles(rows: int, *, fixed: bool) -> Tiles:
    """The tiles for `rows` rows. `fixed`: the same for any number, so that no bit depends on it."""
    if fixed:
        return _FIXED
    if rows == 1:
        return _ONE
    return _FEW if rows <= 16 else _MANY


def buckets(rows: int) -> tuple[int, ...]:
    """Numbers of rows that launches are prepared for, up to `rows`, which is the last."""
    steps = [1, 4, 8, 16, 24, 32, 48, 64, *range(96, rows, 32)]
    return (*(step for step in steps if step < rows), rows)


SMALLEST_SPLIT: Final = 2
"""Pages of the smallest split of the attention."""
SPLIT_PAGES: Final = 4
"""Pages in which the length of a context is counted, to choose a launch."""


def split_classes(places: int) -> tuple[int, ...]:
    """Numbers of SPLIT_PAGES that launches are prepared for, for rings of `places` pages."""
    most = -(-places // SPLIT_PAGES)
    return (*(count for count in (1, 2, 4, 8) if count < most), most)
