import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import shm
from engine.api import EngineSpec
from engine.shm import FIELDS, Batch, Ring, RingFull, create_memory

SPEC = EngineSpec(
    model="m",
    sample_rate=100,
    frame_size=4,
    slots=2,
    startup_frames=0,
    max_in_flight=3,
)


@contextmanager
def ring() -> Iterator[tuple[Ring, Ring]]:
    """A ring of six records: its writer and its reader, each with a mapping of its own."""
    memory = create_memory()
    writer = Ring(memory, SPEC, create=True)
    reader = Ring(memory, SPEC)
    os.close(memory)
    yield writer, reader
    writer.close()
    reader.close()


def records(first: int, count: int) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
    numbers = range(first, first + count)
    return (
        [tuple(number * 10 + field for field in range(FIELDS)) for number in numbers],
        [np.arange(4, dtype=np.float32) + number for number in numbers],
    )


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=60))
def test_what_goes_in_comes_out_once_and_in_order(schedule: list[int | None]) -> None:
    """Writes of 0 to 7 records; None reads the oldest batch that was announced."""
    with ring() as (writer, reader):
        announced: deque[tuple[int, Batch]] = deque()
        written = waiting = 0
        for count in schedule:
            if count is None:
                if announced:
                    first, batch = announced.popleft()
                    fields, pcm = records(first, batch.count)
                    got, sound = reader.read(batch)
                    waiting -= batch.count
                    assert got == [list(row) for row in fields]
                    assert sound.shape == (len(pcm), 4)
                    assert all(np.array_equal(a, b) for a, b in zip(sound, pcm, strict=True))
            elif waiting + count > 6:
                with pytest.raises(RingFull):
                    writer.write(*records(written, count))
            else:
                announced.append((written, writer.write(*records(written, count))))
                assert announced[-1][1].count == count
                written += count
                waiting += count


def test_an_empty_ring_begins_at_its_front() -> None:
    with ring() as (writer, reader):
        for _ in range(5):
            first = writer.write(*records(0, 2))
            second = writer.write(*records(2, 1))
            assert (first.at, second.at) == (0, 2)
            reader.read(first)
            reader.read(second)


def test_what_was_read_is_a_copy() -> None:
    with ring() as (writer, reader):
        _, sound = reader.read(writer.write(*records(0, 6)))
        kept = sound.copy()
        reader.read(writer.write(*records(6, 6)))
        assert np.array_equal(sound, kept)


def test_integers_keep_64_bits() -> None:
    with ring() as (writer, reader):
        fields = [(2**63 - 1, -(2**63), 0, 1, 2**40)]
        got, _ = reader.read(writer.write(fields, [np.zeros(4, np.float32)]))
        assert got == [list(fields[0])]


def test_memory_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shm.os, "memfd_create")
    with ring() as (writer, reader):
        fields, _ = reader.read(writer.write(*records(0, 5)))
        assert len(fields) == 5
