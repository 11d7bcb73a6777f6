"""Loudness of a recorded voice, brought to what the models were trained on."""

from __future__ import annotations

import math

import numpy as np

from engine.api import Pcm

TARGET_LUFS = -24.0
"""PersonaPlex's level for voice prompts."""
MIN_S = 0.5
"""Integrated loudness (ITU-R BS.1770) needs one gating block of 0.4 s."""


def normalise(pcm: Pcm, sample_rate: int) -> Pcm:
    """`pcm` [samples] at TARGET_LUFS. Raises ValueError for silence (nothing above -70 LUFS)."""
    import pyloudnorm  # brings all of SciPy, for which an engine's start shouldn't wait

    loudness = pyloudnorm.Meter(sample_rate).integrated_loudness(pcm)
    if not math.isfinite(loudness):
        raise ValueError("the recording is silent")
    normalised: Pcm = np.multiply(pcm, 10 ** ((TARGET_LUFS - loudness) / 20), dtype=np.float32)
    return normalised
