"""The right of way between processes on the same devices: closed while frames are ready."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from pathlib import Path
from typing import Final

from engine.shm import create_memory

_POLL_S = 2e-4
_BYTES = mmap.PAGESIZE
ENGINES: Final = 64
"""As many close one gate."""


class Gate:
    """A byte in shared memory for each engine, which closes the gate while frames wait for their
    step or are in it. Other work on their devices waits before it between two steps of its own.
    """

    def __init__(self, memory: int | None = None, engine: int = 0) -> None:
        """`memory`: the descriptor of another's gate, which stays the caller's; None makes one.
        `engine`: which of `ENGINES` this one stands for when it is closed or opened.
        """
        self.engine = engine
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
        """Whether frames are ready at any engine."""
        return not self._map.closed and any(self._map[:ENGINES])

    @closed.setter
    def closed(self, closed: bool) -> None:
        if not self._map.closed:
            self._map[self.engine] = closed

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
