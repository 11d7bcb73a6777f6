"""Frames between two processes: a ring of records in shared memory, one writer and one reader."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.api import EngineError, EngineSpec, Pcm

FIELDS = 5
"""Integers of a record, beside its frame."""
_HEADER = 64
"""Bytes before the records: the reader's count, on a cache line of its own."""


class RingFull(EngineError):
    """The reader is a whole ring behind: its owner has fed more than was agreed."""


class Batch(msgspec.Struct, frozen=True):
    """Where records lie that were written together. They may run over the ring's end."""

    at: int
    count: int


def create_memory() -> int:
    """A file descriptor of empty anonymous memory that other processes can map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("engine-ring")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Ring:
    """`capacity` records, each of FIELDS int64 and one float32 frame [frame_size].

    The writer announces by a message where a batch lies and how long it is: what was announced is
    there, since a system call lies between. The reader's count of records so far lies in the
    memory, so that the writer knows the free places. When the reader has caught up, the writer
    begins at the front again: so a ring that is mostly empty stays in the processors' caches,
    however large it is. Both ends map the same descriptor.
    """

    def __init__(self, descriptor: int, spec: EngineSpec, *, create: bool = False) -> None:
        """Room for all frames that the engine's leases may have in flight together."""
        self.capacity = spec.all_slots * spec.max_in_flight
        fields_bytes = self.capacity * FIELDS * 8
        size = _HEADER + fields_bytes + self.capacity * spec.frame_size * 4
        if create:
            os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        memory = np.frombuffer(self._memory, np.uint8)
        self._read_count = memory[:8].view(np.int64)
        self._fields = memory[_HEADER : _HEADER + fields_bytes].view(np.int64).reshape(-1, FIELDS)
        self._pcm = memory[_HEADER + fields_bytes :].view(np.float32).reshape(self.capacity, -1)
        self._count = 0
        self._next = 0

    def write(self, fields: Sequence[tuple[int, ...]], pcm: Sequence[Pcm]) -> Batch:
        """Appends records: their integers and their frames. Returns what to announce.

        Raises RingFull, and writes nothing, if there isn't room for all.
        """
        count, waiting = len(pcm), self._count - int(self._read_count[0])
        if waiting + count > self.capacity:
            raise RingFull(f"{count} frames don't fit: {waiting} of {self.capacity} wait")
        at = self._next if waiting else 0
        fits = min(count, self.capacity - at)
        if count:
            self._put(at, fields[:fits], pcm[:fits])
        if fits < count:
            self._put(0, fields[fits:], pcm[fits:])
        self._count += count
        self._next = (at + count) % self.capacity
        return Batch(at, count)

    def read(self, batch: Batch) -> tuple[list[list[int]], Pcm]:
        """Takes out the next announced batch: its integers, and a copy of its frames
        [count, frame_size].
        """
        end = batch.at + batch.count
        if end <= self.capacity:
            fields = self._fields[batch.at : end].tolist()
            pcm = self._pcm[batch.at : end].copy()
        else:
            end -= self.capacity
            fields = self._fields[batch.at :].tolist() + self._fields[:end].tolist()
            pcm = np.concatenate((self._pcm[batch.at :], self._pcm[:end]))
        self._count += batch.count
        self._read_count[0] = self._count
        return fields, pcm

    def close(self) -> None:
        """Unmaps the memory."""
        del self._read_count, self._fields, self._pcm
        self._memory.close()

    def _put(self, at: int, fields: Sequence[tuple[int, ...]], pcm: Sequence[Pcm]) -> None:
        end = at + len(pcm)
        self._fields[at:end] = fields
        np.concatenate(pcm, out=self._pcm[at:end].reshape(-1))
