"""How much of a launch one program takes."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.launch import INTERPRETED

NARROWEST = 16
"""Numbers that a matrix unit takes at once: no dimension is narrower."""
FIXED_ROWS = 64
"""Rows for which the tiles are chosen that serve any number of rows."""
STAGES = 3
"""Tiles of a product's inputs that are under way at once."""
SAMPLES = 1024 if INTERPRETED else 64
"""Samples of a program next to the waveform."""
_PROGRAMS = 96
"""Programs enough to keep the GPU busy: tiles are made smaller until there are as many."""
_TILE_BYTES = 1 << 17
"""Shared memory of a program's tiles."""
_TILES: tuple[tuple[int, int], ...] = (
    (128, 128),
    (128, 64),
    (64, 64),
    (64, 32),
    (32, 32),
    (32, 16),
    (16, 16),
)
if INTERPRETED:
    # There each program takes its time, whatever its size.
    _PROGRAMS, _TILES, _TILE_BYTES = 1, ((1024, 256), (256, 64), *_TILES), 1 << 24
_BLOCK_NUMBERS = 1 << 20 if INTERPRETED else 128 * 128
"""Outputs of a residual block that one program holds."""
_BLOCK_K = 4096 if INTERPRETED else 64
"""Numbers of a residual block's windows that are taken at once."""


def wide(size: int) -> int:
    """A dimension as the kernels have it: a power of two, zeros behind the real numbers."""
    return max(NARROWEST, 1 << (size - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program makes of a matrix product, and how."""

    m: int
    n: int
    k: int
    warps: int

    @classmethod
    def choose(cls, count: int, width: int, window: int, itemsize: int) -> Tile:
        """For [count, window] x [window, width] of numbers of `itemsize` bytes."""
        # Products of float32 are made number by number, and unrolled: small ones.
        tiles = _TILES if itemsize < 4 or INTERPRETED else _TILES[-3:]
        fitting = [(m, n) for m, n in tiles if width % n == 0 and (m <= count or m == NARROWEST)]
        enough = [(m, n) for m, n in fitting if -(-count // m) * (width // n) >= _PROGRAMS]
        m, n = (enough or fitting[-1:])[0]
        most = _TILE_BYTES // (STAGES * (m + n) * itemsize)
        k = min(window & -window, 1 << (most.bit_length() - 1))
        return cls(m, n, k, warps=8 if m * n >= 128 * 64 else 4)


def block_tile(count: int, channels: int, window: int, itemsize: int) -> tuple[int, int]:
    """Windows of `count` that a program takes of a residual block, and numbers of them at once."""
    if itemsize == 4 and not INTERPRETED:
        return NARROWEST, min(window & -window, 2 * NARROWEST)
    most = min(_TILES[0][0], _BLOCK_NUMBERS // channels)
    while most > NARROWEST and -(-count // most) < _PROGRAMS:
        most //= 2
    return most, min(window & -window, _BLOCK_K)
