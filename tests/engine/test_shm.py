import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import shm
from engine.api import EngineSpec
from engine.shm import FIELDS, Ring, RingFull, create_memory

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


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_what_goes_in_comes_out_once_and_in_order(schedule: list[tuple[bool, int]]) -> None:
    with ring() as (writer, reader):
        written, announced, read = 0, [0], 0
        for write, count in schedule:
            if write:
                fields, pcm = records(written, count)
                if written - read + count > 6:
                    with pytest.raises(RingFull):
                        writer.write(fields, pcm)
                    continue
                written += count
                announced.append(writer.write(fields, pcm))
                assert announced[-1] == written
            else:
                target = announced[-1 - count % len(announced)]
                if target < read:
                    continue
                fields, pcm = records(read, target - read)
                got, sound = reader.read(target)
                read = target
                assert got == [list(row) for row in fields]
                assert sound.shape == (len(pcm), 4)
                assert all(np.array_equal(a, b) for a, b in zip(sound, pcm, strict=True))


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
