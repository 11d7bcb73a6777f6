import numpy as np
import pytest

from recipes.bench.browser import RATE, arrivals, chirp, delays_ms

PERIOD = round(0.73 * RATE)


def microphone(periods, offset=0):
    pcm = np.zeros(periods * PERIOD + offset + RATE, np.float32)
    for start in range(offset, offset + periods * PERIOD, PERIOD):
        pcm[start : start + len(chirp())] += chirp()
    return pcm


def test_chirps_are_found_to_the_sample_in_noise():
    pcm = microphone(5, 1_234)
    pcm += np.random.default_rng(0).normal(0, 0.02, len(pcm)).astype(np.float32)
    assert arrivals(pcm) == [1_234 + n * PERIOD for n in range(5)]


@pytest.mark.parametrize("delay_ms", [1, 90, 250, 700])
def test_a_delay_is_measured_and_loudness_does_not_matter(delay_ms):
    sent = microphone(4)
    returned = 0.3 * np.roll(sent, round(delay_ms * RATE / 1000))
    assert delays_ms(np.column_stack((sent, returned))) == pytest.approx([delay_ms] * 4)


def test_what_never_comes_back_is_not_counted():
    sent = microphone(4)
    returned = np.roll(sent, RATE // 10)
    returned[:PERIOD] = 0
    assert len(delays_ms(np.column_stack((sent, returned)))) == 3
