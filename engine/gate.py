"""The right of way between processes on one device: closed while frames are ready."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from pathlib import Path

from engine.shm import create_memory

_POLL_S = 2e-4
_BYTES = mmap.PAGESIZE


class Gate:
    """One byte in shared memory. An engine closes it while frames wait for their step or are in it;
    other work on its device waits before it between two steps of its own. One engine, any number
    of others.
    """

    def __init__(self, memory: int | None = None) -> None:
        """`memory`: the descriptor of another's gate, which stays the caller's; None makes one."""
        self._memory = create_memory() if memory is None else os.dup(memory)
        if memory is None:
            os.ftruncate(self._memory, _BYTES)
        self._map = mmap.mmap(self._memory, _BYTES)
        self._end = weakref.finalize(self, _release, self._map, self._memory)

    @classmethod
    def at(cls, path: str) -> Gate:
        """The gate of another process, by its `path` there. Raises OSError."""
        memory = os.open(path, os.O_RDWR)
        try:
            return cls(memory)
        finally:
            os.close(memory)

    @property
    def memory(self) -> int:
        """Its descriptor, for a process that inherits it."""
        return self._memory

    @property
    def path(self) -> str:
        """Where processes of the same user find it while this one lives (Linux)."""
        return str(Path("/proc", str(os.getpid()), "fd", str(self._memory)))

    @property
    def closed(self) -> bool:
        """Whether frames are ready."""
        return not self._map.closed and self._map[0] != 0

    @closed.setter
    def closed(self, closed: bool) -> None:
        if not self._map.closed:
            self._map[0] = closed

    def wait(self, longest_s: float) -> float:
        """Waits until it is open, but no longer than that. Returns the seconds that it took."""
        if not self.closed:
            return 0.0
        began = time.monotonic()
        while self.closed and time.monotonic() - began < longest_s:
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def close(self) -> None:
        """Gives the memory back; from then on it is open. Idempotent."""
        self._end()


def _release(memory: mmap.mmap, descriptor: int) -> None:
    memory.close()
    os.close(descriptor)
