"""A bound on what a message holds, checked before it is decoded.

A list within a list costs two bytes on the wire and thirty times that in memory, and its decoding
holds up everybody else for as long: millions of them, for seconds.
"""

from __future__ import annotations

from typing import Final

from duplex.errors import SessionError

MAX_ITEMS: Final = 100_000
"""Items of one message: its commas, and what opens a list or an object, those in texts included."""

_MARKS: Final = (b",", b"[", b"{")

_SMALL: Final = 1 << 16
"""Bytes of a message that isn't worth the look, and of what is looked at at a time."""


def check_items(message: bytes | str) -> None:
    """Raises SessionError for JSON of more than MAX_ITEMS items. Ends early if it has them."""
    if _too_many(message):
        raise SessionError("invalid_value", f"This has more than {MAX_ITEMS} items.")


def _too_many(message: bytes | str) -> bool:
    if len(message) <= _SMALL:
        return False
    if isinstance(message, str):
        message = message.encode(errors="replace")
    items = 0
    for start in range(0, len(message), _SMALL):
        for mark in _MARKS:
            if message.find(mark, start, start + _SMALL) >= 0:  # far faster than to count none
                items += message.count(mark, start, start + _SMALL)
        if items > MAX_ITEMS:
            return True
    return False
