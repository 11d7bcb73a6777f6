import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.output_clock import OutputClock

SIZE, RATE, FRAME_S = 960, 48000, 0.02


def numbered(k: int) -> np.ndarray:
    return np.full(SIZE, k + 1, np.float32)


def numbers(frames: list[np.ndarray]) -> list[int]:
    """The k of `numbered`; -1 for silence."""
    return [int(frame[0]) - 1 for frame in frames]


def test_the_first_frame_begins_the_timeline():
    clock = OutputClock(SIZE, RATE)
    assert clock.next_deadline is None
    assert clock.due(1.0) == []
    clock.put(numbered(0), 5.0)
    clock.put(numbered(1), 5.0)
    assert clock.next_deadline == 5.0
    assert numbers(clock.due(5.0)) == [0]
    assert clock.due(5.0199) == []
    assert numbers(clock.due(5.02)) == [1]


def test_deadlines_are_absolute_for_hours():
    clock = OutputClock(1920, 24000)
    clock.start(0.1)
    for k in range(100_000):
        assert clock.next_deadline == 0.1 + k * 1920 / 24000
        assert len(clock.due(clock.next_deadline + 0.0009)) == 1
    assert clock.skipped == 0


def test_late_frames_are_stood_in_for():
    clock = OutputClock(SIZE, RATE)
    clock.put(numbered(0), 0.0)
    assert numbers(clock.due(0.05)) == [0, -1, -1]
    clock.put(numbered(1), 0.055)
    assert numbers(clock.due(0.06)) == [1]
    assert (clock.concealed, clock.frames_out, clock.frames_in) == (2, 4, 2)


def test_the_backlog_drops_its_oldest():
    clock = OutputClock(SIZE, RATE, max_backlog_frames=3)
    for k in range(10):
        clock.put(numbered(k), 0.0)
    assert clock.backlog == 3
    assert clock.dropped == 7
    assert numbers(clock.due(0.04)) == [7, 8, 9]


def test_flush_takes_back_what_waits_and_the_timeline_goes_on():
    clock = OutputClock(SIZE, RATE)
    for k in range(5):
        clock.put(numbered(k), 0.0)
    assert numbers(clock.due(0.0)) == [0]
    assert clock.flush() == 4
    assert clock.flushed == 4
    assert clock.next_deadline == 0.02
    assert numbers(clock.due(0.02)) == [-1]
    clock.put(numbered(9), 0.03)
    assert numbers(clock.due(0.04)) == [9]


def test_a_stalled_sink_skips_what_it_cannot_make_good():
    clock = OutputClock(SIZE, RATE, max_backlog_frames=4)
    clock.put(numbered(0), 0.0)
    frames = clock.due(10.0)
    assert numbers(frames) == [0, -1, -1, -1]
    assert clock.skipped == 501 - 4
    assert clock.next_deadline == pytest.approx(10.02)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="10 samples, not 960"):
        OutputClock(SIZE, RATE).put(np.zeros(10, np.float32), 0.0)
    with pytest.raises(ValueError, match="max_backlog_frames 0"):
        OutputClock(SIZE, RATE, max_backlog_frames=0)


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.booleans(), st.floats(0, 0.3)), max_size=80),
)
def test_every_frame_is_given_once_in_order_or_counted(cap, actions):
    clock = OutputClock(SIZE, RATE, max_backlog_frames=cap)
    clock.start(0.0)
    now, put, out = 0.0, 0, []
    for is_put, gap in actions:
        now += gap
        if is_put:
            clock.put(numbered(put), now)
            put += 1
        else:
            out += numbers(clock.due(now))
            assert clock.next_deadline > now
        assert clock.backlog <= cap
    heard = [k for k in out if k >= 0]
    assert heard == sorted(set(heard))
    assert len(heard) + clock.dropped + clock.backlog == put
    assert len(out) == clock.frames_out == len(heard) + clock.concealed
    if clock.frames_out:
        assert (clock.frames_out + clock.skipped) * FRAME_S == pytest.approx(clock.next_deadline)
