"""Whether what is heard is what was said: for audio that went through codecs and a network."""

from __future__ import annotations

import numpy as np

from media.formats import Pcm

_PIECE_S = 0.25
_QUIET = 0.01  # RMS


def likeness(heard: Pcm, said: Pcm, rate: int) -> float:
    """The median, over the loud pieces of what was heard, of the best correlation with any place
    of what was said (over and over). A gap or a slip in time spoils a piece, not all of them.
    """
    size = round(_PIECE_S * rate)
    said = np.concatenate((said, said[:size])).astype(np.float64)
    power = np.concatenate(([0.0], np.cumsum(said**2)))
    energy = np.sqrt(np.maximum(power[size:] - power[:-size], 1e-9))
    pieces = heard[: len(heard) // size * size].astype(np.float64).reshape(-1, size)
    loud = [piece for piece in pieces if np.sqrt(np.mean(piece**2)) > _QUIET]
    if not loud:
        return 0.0
    return float(np.median([_best(piece, said, energy) for piece in loud]))


def _best(piece: Pcm, said: Pcm, energy: Pcm) -> float:
    size = 1 << (len(said) + len(piece)).bit_length()
    cross = np.fft.irfft(np.fft.rfft(said, size) * np.conj(np.fft.rfft(piece, size)), size)
    return float(np.max(np.abs(cross[: len(energy)]) / (energy * np.linalg.norm(piece))))
