"""Loudness of recordings."""

from __future__ import annotations

import numpy as np
import pyloudnorm
import pytest

from engine.loudness import MIN_S, TARGET_LUFS, normalise

RATE = 24_000


@pytest.mark.parametrize("level", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("seconds", [MIN_S, 3])
def test_any_level_comes_to_the_target(level: float, seconds: float) -> None:
    pcm = np.random.default_rng(0).normal(0, level, int(RATE * seconds)).astype(np.float32)
    normal = normalise(pcm, RATE)
    assert normal.dtype == np.float32
    assert pyloudnorm.Meter(RATE).integrated_loudness(normal) == pytest.approx(TARGET_LUFS, abs=0.1)
    np.testing.assert_allclose(normal / normal[0], pcm / pcm[0], rtol=1e-3)


@pytest.mark.parametrize("level", [0.0, 1e-5])
def test_silence_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="silent"):
        normalise(np.full(RATE, level, np.float32), RATE)
