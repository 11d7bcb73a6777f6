"""Something to hear in place of audio that did not come.

The last pitch period goes on and fades to silence within 60 ms; what comes after the gap is
faded in over the first 5 ms. (The idea of ITU-T G.711 Appendix I, at 48 kHz.)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from media.formats import Pcm

FADE_SAMPLES: Final = 48 * 60
"""Samples at 48 kHz after which a gap is silent."""

_HISTORY = 48 * 40
_OVERLAP = 48 * 5
_COARSE = 4  # the period is looked for at 12 kHz
_MIN_LAG = 12 * 5 // 2  # 400 Hz
_MAX_LAG = 12 * 15  # 67 Hz
_TEMPLATE = 12 * 15


class Concealer:
    """A stream of mono samples at 48 kHz with gaps in it."""

    def __init__(self) -> None:
        self._history = np.zeros(_HISTORY, np.float32)
        self._period: Pcm | None = None  # what is repeated in a gap
        self._into_gap = 0

    def receive(self, pcm: Pcm) -> Pcm:
        """Takes decoded samples [n]; gives them, faded in if there was a gap before."""
        if self._period is not None:
            overlap = min(_OVERLAP, len(pcm))
            rising = np.arange(1, overlap + 1, dtype=np.float32) / overlap
            tail = self._extrapolate(overlap)
            pcm = pcm.copy()
            pcm[:overlap] = tail * (1 - rising) + pcm[:overlap] * rising
            self._period = None
        self._remember(pcm)
        return pcm

    def conceal(self, samples: int) -> Pcm:
        """Samples [samples] for a gap, or for the next part of one."""
        if self._period is None:
            self._period = self._history[-_pitch_period(self._history) :].copy()
            self._into_gap = 0
        pcm = self._extrapolate(samples)
        self._remember(pcm)
        return pcm

    def _extrapolate(self, samples: int) -> Pcm:
        assert self._period is not None
        at = np.arange(self._into_gap, self._into_gap + samples)
        self._into_gap += samples
        if at[0] >= FADE_SAMPLES:
            return np.zeros(samples, np.float32)
        gain = np.maximum(0, 1 - at / FADE_SAMPLES).astype(np.float32)
        return self._period[at % len(self._period)] * gain

    def _remember(self, pcm: Pcm) -> None:
        if len(pcm) >= _HISTORY:
            self._history[:] = pcm[-_HISTORY:]
        else:
            self._history[: -len(pcm)] = self._history[len(pcm) :]
            self._history[-len(pcm) :] = pcm


def _pitch_period(history: Pcm) -> int:
    """The lag in samples at which the end of `history` [1920] is most like itself."""
    coarse = history.reshape(-1, _COARSE).mean(axis=1)
    template = coarse[-_TEMPLATE:]
    # Row i holds what lies _MAX_LAG - i before the template.
    windows = np.lib.stride_tricks.sliding_window_view(
        coarse[-_TEMPLATE - _MAX_LAG : -_MIN_LAG], _TEMPLATE
    )
    energy = np.sqrt((windows * windows).sum(axis=1)) + 1e-9
    best = int(np.argmax(windows @ template / energy))
    return (_MAX_LAG - best) * _COARSE
