import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.formats import UnsupportedFormat
from media.resample import Resampler, resample_offline

RATES = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000]


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, n).astype(np.float32)


def stream(resampler: Resampler, pcm: np.ndarray, sizes: list[int]) -> np.ndarray:
    cuts = np.cumsum(sizes)
    out = [resampler.push(chunk) for chunk in np.split(pcm, cuts[cuts < len(pcm)])]
    return np.concatenate([*out, resampler.flush()])


@settings(max_examples=60)
@given(
    source=st.sampled_from(RATES),
    target=st.sampled_from([8000, 16000, 24000, 48000]),
    n=st.integers(0, 4000),
    sizes=st.lists(st.integers(0, 900), max_size=30),
)
def test_any_chunking_gives_the_same_bits(source, target, n, sizes):
    pcm = noise(n)
    whole = stream(Resampler(source, target), pcm, [])
    assert whole.dtype == np.float32
    assert len(whole) == -(-n * target // source)
    assert np.array_equal(whole, stream(Resampler(source, target), pcm, sizes))


@pytest.mark.parametrize("source", RATES)
def test_single_samples_give_the_same_bits(source):
    pcm = noise(300)
    whole = stream(Resampler(source, 24000), pcm, [])
    assert np.array_equal(whole, stream(Resampler(source, 24000), pcm, [1] * len(pcm)))


@pytest.mark.parametrize("source", RATES)
def test_holds_back_at_most_two_and_a_half_milliseconds(source):
    resampler = Resampler(source, 24000)
    ready = len(resampler.push(noise(source)))
    assert 24000 - ready <= 24000 * 0.0025


@pytest.mark.parametrize("source", [8000, 16000, 32000, 44100, 48000])
def test_a_tone_stays_a_tone_in_place(source):
    def tone(rate):
        return (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)

    got = stream(Resampler(source, 24000), tone(source), [160] * 1000)
    inner = slice(500, -500)
    assert np.max(np.abs(got - tone(24000))[inner]) < 2e-3


def test_above_half_the_target_rate_nothing_is_left():
    high = np.sin(2 * np.pi * 15000 * np.arange(48000) / 48000).astype(np.float32)
    got = stream(Resampler(48000, 24000), high, [])
    assert np.sqrt(np.mean(got[500:-500] ** 2)) < 5e-3


def test_equal_rates_pass_through_without_a_copy():
    resampler = Resampler(24000, 24000)
    pcm = noise(10)
    assert resampler.push(pcm) is pcm
    assert len(resampler.flush()) == 0


def test_a_flushed_resampler_is_a_new_one():
    resampler = Resampler(16000, 24000)
    first = stream(resampler, noise(1000), [70] * 20)
    assert np.array_equal(first, stream(resampler, noise(1000), []))


def test_earlier_output_is_not_overwritten():
    resampler = Resampler(48000, 24000)
    out = [resampler.push(noise(960, seed)) for seed in range(50)]
    kept = [chunk.copy() for chunk in out]
    resampler.push(noise(48000, 99))
    assert all(np.array_equal(a, b) for a, b in zip(out, kept, strict=True))


@pytest.mark.parametrize("rates", [(7999, 24000), (24000, 48001), (0, 24000), (-1, 24000)])
def test_rates_out_of_range_are_refused(rates):
    with pytest.raises(UnsupportedFormat, match="Hz is not within"):
        Resampler(*rates)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_a_resampler_starts_no_threads():
    before = len(os.listdir("/proc/self/task"))
    resamplers = [Resampler(48000, 24000) for _ in range(8)]
    for resampler in resamplers:
        resampler.push(noise(960))
    assert len(os.listdir("/proc/self/task")) == before


def test_offline_keeps_length_and_place():
    pcm = (0.5 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)).astype(np.float32)
    got = resample_offline(pcm, 44100, 24000)
    want = 0.5 * np.sin(2 * np.pi * 440 * np.arange(24000) / 24000)
    assert got.dtype == np.float32
    assert len(got) == 24000
    assert np.max(np.abs(got - want)[500:-500]) < 1e-4
    assert resample_offline(pcm, 44100, 44100) is pcm
