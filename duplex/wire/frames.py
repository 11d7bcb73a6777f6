"""What a message travels in: text frames, unless it says otherwise."""

from __future__ import annotations


class Binary(bytes):
    """A message for a binary WebSocket frame. Plain bytes are the UTF-8 of a text frame."""

    __slots__ = ()
