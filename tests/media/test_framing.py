import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.framing import Framer


@given(st.integers(1, 50), st.lists(st.integers(0, 130), max_size=20))
def test_any_chunking_gives_the_same_frames(size, chunks):
    framer = Framer(size)
    total = sum(chunks)
    pcm = np.arange(1, total + 1, dtype=np.float32)
    frames = []
    for chunk in np.split(pcm, np.cumsum(chunks)[:-1]) if chunks else []:
        before = framer.waiting
        got = framer.push(chunk)
        assert len(got) == (before + len(chunk)) // size
        frames += got
    assert framer.samples_in == total
    assert framer.frames_out == len(frames) == total // size
    assert framer.waiting == total % size
    last = framer.flush()
    assert (last is None) == (total % size == 0)
    assert framer.flush() is None
    if last is not None:
        frames.append(last)
    assert framer.frames_out == len(frames)
    assert all(frame.shape == (size,) and frame.dtype == np.float32 for frame in frames)
    padded = np.concatenate([pcm, np.zeros(-total % size, np.float32)])
    assert np.array_equal(np.concatenate([np.zeros(0, np.float32), *frames]), padded)


def test_a_whole_frame_is_not_copied():
    framer = Framer(4)
    pcm = np.ones(4, np.float32)
    assert framer.push(pcm)[0] is pcm
    framer.push(np.ones(1, np.float32))
    assert framer.push(pcm)[0] is not pcm


def test_frames_do_not_share_the_partial_buffer():
    framer = Framer(4)
    first = framer.push(np.full(3, 1, np.float32)) + framer.push(np.full(3, 2, np.float32))
    second = framer.push(np.full(3, 3, np.float32))
    assert first[0].tolist() == [1, 1, 1, 2]
    assert second[0].tolist() == [2, 2, 3, 3]


def test_frame_size_is_positive():
    with pytest.raises(ValueError, match="frame_size 0"):
        Framer(0)


def test_clear_drops_what_waits():
    framer = Framer(4)
    framer.push(np.ones(7, np.float32))
    assert framer.clear() == 3
    assert framer.waiting == 0
    assert framer.push(np.full(4, 2, np.float32))[0].tolist() == [2, 2, 2, 2]
    framer.push(np.ones(1, np.float32))
    last = framer.flush()
    assert last is not None
    assert last.tolist() == [1, 0, 0, 0]
