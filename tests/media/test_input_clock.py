import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.formats import INPUT_FORMATS, AudioFormat, BadAudio, UnsupportedFormat, encode
from media.input_clock import MAX_CATCH_UP_FRAMES, InputClock

SIZE, RATE, FRAME_S = 1920, 24000, 0.08
F32 = AudioFormat.PCM_F32LE


def noise(n: int) -> np.ndarray:
    return np.random.default_rng(n).uniform(-0.9, 0.9, n).astype(np.float32)


def numbered(k: int) -> np.ndarray:
    """A frame that can be told from others, and from silence."""
    return np.full(SIZE, (k + 1) / 1000, np.float32)


def number(frame: np.ndarray) -> int:
    """The k of `numbered`; -1 for silence."""
    return round(float(frame[0]) * 1000) - 1


def live(**options) -> InputClock:
    return InputClock(SIZE, RATE, server_clocked=True, **options)


@settings(max_examples=50)
@given(
    format=st.sampled_from(sorted(INPUT_FORMATS)),
    rate=st.sampled_from([8000, 16000, 24000, 44100, 48000]),
    n=st.integers(0, 9000),
    cuts=st.lists(st.integers(0, 9000), max_size=8),
)
def test_any_chunking_gives_the_same_frames(format, rate, n, cuts):
    pcm = noise(n)

    def through(chunks):
        clock = InputClock(SIZE, RATE)
        frames = [frame for c in chunks for frame in clock.push(encode(format, c), format, rate)]
        frames += clock.flush()
        assert clock.samples_in == n
        assert clock.frames_out == len(frames)
        return frames, clock.padded_samples

    whole, padded = through([pcm])
    total = -(-n * RATE // rate)
    assert len(whole) == -(-total // SIZE)
    assert padded == len(whole) * SIZE - total
    parts, padded_parts = through(np.split(pcm, sorted(c for c in cuts if c <= n)))
    assert padded_parts == padded
    assert len(parts) == len(whole)
    for a, b in zip(whole, parts, strict=True):
        assert a.shape == (SIZE,)
        assert a.tobytes() == b.tobytes()


def test_the_fast_path_neither_copies_nor_changes():
    pcm = noise(SIZE)
    data = pcm.tobytes()
    (frame,) = InputClock(SIZE, RATE).push(data, F32, RATE)
    assert np.shares_memory(frame, np.frombuffer(data, np.float32))
    assert frame.tobytes() == data


@pytest.mark.parametrize(
    ("data", "format", "rate", "error"),
    [
        (bytes(7), AudioFormat.PCM16, RATE, "7 bytes"),
        (np.array([np.nan], "<f4").tobytes(), F32, RATE, "NaN"),
        (bytes(8), F32, 16000, "changed from 24000 to 16000"),
        (bytes(8), F32, 96000, "changed from 24000 to 96000"),
    ],
)
def test_bad_audio_leaves_the_state_untouched(data, format, rate, error):
    pcm = noise(3000)
    clock = InputClock(SIZE, RATE)
    frames = clock.push(pcm[:1000].tobytes(), F32, RATE)
    with pytest.raises(BadAudio, match=error):
        clock.push(data, format, rate)
    assert clock.samples_in == 1000
    frames += clock.push(pcm[1000:].tobytes(), F32, RATE) + clock.flush()
    assert np.array_equal(np.concatenate(frames)[:3000], pcm)


def test_a_refused_first_rate_does_not_fix_the_rate():
    clock = InputClock(SIZE, RATE)
    with pytest.raises(UnsupportedFormat, match="4000 Hz"):
        clock.push(bytes(8), F32, 4000)
    assert clock.source_rate is None
    clock.push(bytes(8), F32, 16000)
    assert clock.source_rate == 16000


def test_the_format_may_change_from_chunk_to_chunk():
    pcm = np.round(noise(SIZE) * 32768).astype(np.float32) / 32768
    clock = InputClock(SIZE, RATE)
    frames = clock.push(encode(AudioFormat.PCM16, pcm[:700]), AudioFormat.PCM16, RATE)
    frames += clock.push(encode(F32, pcm[700:]), F32, RATE)
    assert np.array_equal(frames[0], pcm)


def test_clear_drops_what_is_no_frame_yet_and_counts_it():
    clock = InputClock(SIZE, RATE)
    clock.push(noise(2500).tobytes(), F32, RATE)
    clock.clear()
    assert clock.cleared_samples == 580
    assert clock.flush() == []
    resampled = InputClock(SIZE, RATE)
    resampled.push_pcm(noise(1000), 48000)
    resampled.clear()
    assert resampled.cleared_samples == 500
    assert resampled.flush() == []


def test_a_client_clock_feeds_no_silence():
    clock = InputClock(SIZE, RATE)
    clock.start(0.0)
    clock.push(noise(10).tobytes(), F32, RATE, 0.0)
    assert clock.next_deadline is None
    assert clock.due(1e6) == []


def test_silence_begins_after_160_ms_and_goes_on_in_real_time():
    clock = live()
    clock.push_pcm(numbered(0), RATE, 10.0)
    assert clock.next_deadline == pytest.approx(10.16)
    assert clock.due(10.159) == []
    seen = []
    for _ in range(50):
        deadline = clock.next_deadline
        frames = clock.due(deadline)
        assert len(frames) == 1
        assert not frames[0].any()
        seen.append(deadline)
    assert np.allclose(seen, 10.16 + 0.08 * np.arange(50), atol=1e-9)
    assert clock.concealed == 50
    assert clock.padded_samples == 0
    assert clock.frames_out == 51


def test_silence_can_be_put_off():
    clock = live()
    clock.push_pcm(numbered(0), RATE, 10.0)
    clock.wait(10.5)
    assert clock.due(10.6) == []
    assert clock.next_deadline == pytest.approx(10.66)
    mine = InputClock(SIZE, RATE)
    mine.wait(1.0)
    assert mine.next_deadline is None


def test_deadlines_are_absolute_however_late_they_are_asked_for():
    clock = live()
    clock.start(0.0)
    for k in range(1000):
        assert clock.next_deadline == pytest.approx(0.16 + k * FRAME_S)
        assert len(clock.due(clock.next_deadline + 0.03)) == 1


def test_an_empty_chunk_is_no_audio():
    clock = live()
    clock.push_pcm(numbered(0), RATE, 0.0)
    assert clock.push(b"", F32, RATE, 0.1) == []
    assert clock.next_deadline == pytest.approx(0.16)


def test_with_a_cap_silence_waits_for_real_time_to_catch_up():
    clock = live(max_backlog_frames=5)
    assert len(clock.push_pcm(np.concatenate([numbered(k) for k in range(4)]), RATE, 0.0)) == 4
    assert clock.next_deadline == pytest.approx(4 * FRAME_S)


def test_a_caller_who_never_speaks_is_fed_silence_from_the_start():
    clock = live()
    assert clock.due(100.0) == []
    clock.start(5.0)
    assert clock.due(5.1599) == []
    assert len(clock.due(5.16)) == 1
    clock.start(9.0)
    assert clock.next_deadline == pytest.approx(5.24)


@pytest.mark.parametrize("rate", [24000, 48000])
def test_silence_first_completes_the_frame_that_was_begun(rate):
    clock = live()
    pcm = noise(500 * rate // RATE)
    assert clock.push_pcm(pcm, rate, 0.0) == []
    (frame,) = clock.due(0.16)
    assert frame[:500].any()
    assert not frame[500:].any()
    assert clock.padded_samples == SIZE - 500
    assert clock.concealed == 0
    clock.due(0.24)
    assert clock.concealed == 1


def test_audio_ends_the_silence():
    clock = live()
    clock.push_pcm(numbered(0), RATE, 0.0)
    assert len(clock.due(0.4)) == 4
    assert number(clock.push_pcm(numbered(1), RATE, 0.41)[0]) == 1
    assert clock.due(0.56) == []
    assert len(clock.due(0.571)) == 1


def test_silence_is_not_shared_and_writable():
    clock = live()
    clock.start(0.0)
    (frame,) = clock.due(0.16)
    with pytest.raises(ValueError, match="read-only"):
        frame[0] = 1


def test_a_whole_utterance_at_once_is_kept_without_a_cap():
    clock = live()
    frames = clock.push_pcm(np.concatenate([numbered(k) for k in range(125)]), RATE, 1.0)
    assert [number(frame) for frame in frames] == list(range(125))
    assert clock.dropped == 0
    assert clock.next_deadline == pytest.approx(1.16)


def test_after_a_stall_of_the_server_the_rest_is_skipped():
    clock = live()
    clock.start(0.0)
    assert len(clock.due(0.16 + 60.0)) == MAX_CATCH_UP_FRAMES
    assert clock.skipped == 751 - MAX_CATCH_UP_FRAMES
    assert clock.next_deadline == pytest.approx(0.16 + 60.08)


def test_of_a_late_burst_the_oldest_frames_are_dropped():
    clock = live(max_backlog_frames=3)
    for k in range(5):
        clock.push_pcm(numbered(k), RATE, k * FRAME_S)
    assert len(clock.due(1.2)) == 10  # frames 5 to 14 did not come by 1.2 s
    assert clock.concealed == 10
    burst = np.concatenate([numbered(k) for k in range(5, 16)])
    kept = clock.push_pcm(burst, RATE, 1.2)
    assert [number(frame) for frame in kept] == [14, 15]
    assert clock.dropped == 9
    assert clock.late == 10


def test_frames_one_by_one_in_a_burst_stay_within_the_cap():
    clock = live(max_backlog_frames=3)
    clock.push_pcm(numbered(0), RATE, 0.0)
    clock.due(2.0)
    kept = []
    for k in range(20):
        kept += clock.push_pcm(numbered(k), RATE, 2.001)
    assert len(kept) <= 3
    assert clock.dropped == 20 - len(kept)


def test_a_cap_needs_a_server_clock():
    with pytest.raises(ValueError, match="max_backlog_frames"):
        InputClock(SIZE, RATE, max_backlog_frames=4)
    with pytest.raises(ValueError, match="max_backlog_frames"):
        live(max_backlog_frames=1)


@settings(max_examples=60)
@given(
    cap=st.integers(2, 6),
    gaps=st.lists(st.floats(0, 1.5), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 3 * SIZE), min_size=60, max_size=60),
)
def test_media_time_never_runs_away_from_real_time(cap, gaps, sizes):
    """Latency can't grow: whatever comes when, what was given ends at most `cap` frames ahead."""
    clock = live(max_backlog_frames=cap)
    now, given, ended = 0.0, 0, 0.0
    clock.start(now)
    for gap, size in zip(gaps, sizes, strict=False):
        until = now + gap
        while (deadline := clock.next_deadline) is not None and deadline <= until:
            frames = clock.due(deadline)
            assert 1 <= len(frames) <= 2
            given += len(frames)
            ended = max(ended, deadline) + len(frames) * FRAME_S
        now = until
        frames = clock.push_pcm(np.full(size, 0.5, np.float32), RATE, now)
        given += len(frames)
        ended = max(ended, now) + len(frames) * FRAME_S
        assert ended - now <= (cap + 1) * FRAME_S + 1e-6
        assert clock.next_deadline >= now + 0.16 - 1e-9
    assert clock.frames_out == given
    # Every sample is in a frame that was given, dropped or still waits.
    taken = sum(sizes[: len(gaps)])
    audio = given - clock.concealed + clock.dropped
    assert audio * SIZE - clock.padded_samples <= taken
    assert taken < (audio + 1) * SIZE - clock.padded_samples


def test_a_caller_in_real_time_loses_nothing_for_an_hour_of_jitter():
    clock = live(max_backlog_frames=3)
    rng = np.random.default_rng(7)
    frames = 45000
    arrivals = np.maximum.accumulate(np.arange(frames) * FRAME_S + rng.uniform(0, 0.06, frames))
    pcm = numbered(0)
    for now in arrivals:
        assert len(clock.push_pcm(pcm, RATE, float(now))) == 1
        assert clock.due(float(now) + 0.02) == []
    assert clock.dropped == clock.concealed == clock.late == 0
