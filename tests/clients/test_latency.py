import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.latency import FrameTimes, percentiles


@given(st.integers(0, 6), st.integers(1, 50), st.sets(st.integers(0, 48)))
def test_a_frame_is_paired_with_the_input_that_gave_it(startup, frames, lost):
    times = FrameTimes()
    times.sent = [0.08 * k for k in range(startup + frames)]
    kept = [k for k in range(frames) if k not in lost or k == frames - 1]
    times.received = [(k, 0.08 * (k + startup) + 0.001 * (k + 1)) for k in kept]
    assert times.startup == startup
    assert times.lost(startup) == frames - len(kept)
    assert times.deficit == startup + frames - len(kept)
    assert times.latencies_s() == pytest.approx([0.001 * (k + 1) for k in kept])
    assert times.first_audio_s == pytest.approx(0.08 * (startup + kept[0]) + 0.001 * (kept[0] + 1))


def test_nothing_came():
    times = FrameTimes()
    times.sent = [0.0, 0.08]
    assert (times.startup, times.deficit, times.first_audio_s) == (2, 2, None)
    assert times.latencies_s() == []
    assert percentiles([]) is None


def test_more_out_than_in_is_no_error():
    times = FrameTimes()
    times.sent = [0.0]
    times.received = [(0, 0.5), (1, 0.6)]
    assert times.latencies_s() == [0.5]
    assert times.lost(0) == 0


def test_percentiles_are_milliseconds():
    got = percentiles(k / 1000 for k in range(101))
    assert got is not None
    assert (got.p50_ms, got.p95_ms, got.p99_ms, got.max_ms) == (50.0, 95.0, 99.0, 100.0)
