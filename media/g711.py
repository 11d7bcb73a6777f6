"""G.711 as tables (ITU-T G.711, 11/1988, tables 1a to 2b).

Levels are on the 16-bit scale: mu-law's 14-bit values times 4, A-law's 13-bit values times 8.
Encoding takes the code whose interval holds the sample; decoding gives that interval's middle.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_S = TypeVar("_S", bound=np.generic)

_ULAW_BIAS = 132
_ULAW_CLIP = 32635
_ALAW_EVEN_BITS = 0x55


def _frozen(table: npt.NDArray[_S]) -> npt.NDArray[_S]:
    table.setflags(write=False)
    return table


def _ulaw_levels() -> npt.NDArray[np.int32]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    segment, step = code >> 4 & 7, code & 15
    level = ((2 * step + 33) << (segment + 2)) - _ULAW_BIAS
    return np.where(code & 0x80, -level, level)


def _alaw_levels() -> npt.NDArray[np.int32]:
    code = np.arange(256, dtype=np.int32) ^ _ALAW_EVEN_BITS
    segment, step = code >> 4 & 7, code & 15
    level = np.where(
        segment == 0, (2 * step + 1) << 3, (2 * step + 33) << (np.maximum(segment, 1) + 2)
    )
    return np.where(code & 0x80, level, -level)


def _samples() -> npt.NDArray[np.int32]:
    """Every 16-bit value, at its index as an unsigned number."""
    return np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)


def _segment(magnitude: npt.NDArray[np.int32], lowest_bit: int) -> npt.NDArray[np.int32]:
    """How far the top bit is above `lowest_bit`, from 0."""
    bits = range(lowest_bit, lowest_bit + 7)
    segment: npt.NDArray[np.int32] = np.sum([magnitude >> bit > 0 for bit in bits], axis=0)
    return segment


def _ulaw_codes() -> npt.NDArray[np.uint8]:
    sample = _samples()
    magnitude = np.minimum(np.abs(sample), _ULAW_CLIP) + _ULAW_BIAS
    segment = _segment(magnitude, 8)
    code = segment << 4 | magnitude >> (segment + 3) & 15
    return np.asarray(~np.where(sample < 0, code | 0x80, code) & 0xFF, np.uint8)


def _alaw_codes() -> npt.NDArray[np.uint8]:
    sample = _samples()
    magnitude = np.where(sample < 0, ~sample, sample)
    segment = _segment(magnitude, 8)
    code = segment << 4 | magnitude >> (np.maximum(segment, 1) + 3) & 15
    return np.asarray(np.where(sample < 0, code, code | 0x80) ^ _ALAW_EVEN_BITS, np.uint8)


ULAW_DECODE = _frozen((_ulaw_levels() / 32768).astype(np.float32))
ALAW_DECODE = _frozen((_alaw_levels() / 32768).astype(np.float32))
"""[256] float32 by code."""

ULAW_ENCODE = _frozen(_ulaw_codes())
ALAW_ENCODE = _frozen(_alaw_codes())
"""[65536] uint8 by the sample's 16 bits as an unsigned number."""
