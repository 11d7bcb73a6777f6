"""The C library's allocator, told to keep what is freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""glibc's names for them in `mallopt`."""
_LARGEST: Final = 32 << 20
_KEPT: Final = 64 << 20


def keep_freed_memory() -> None:
    """Has blocks of up to 32 MiB reused, and up to 64 MiB kept for that.

    By default a message of megabytes gets fresh pages from the kernel for each of its copies and
    gives them back at once, which takes several times as long as the copying. Does nothing where
    the C library isn't glibc.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
