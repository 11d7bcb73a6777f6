"""Server messages for transports that carry only so many bytes in one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MARK: Final = "…"
"""Ends every text that was cut."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def fit(message: bytes, limit: int) -> bytes:
    """The message in at most `limit` bytes: as it is, or with its longest texts cut.

    What was cut is named by path in the added field `cut`, and can be asked for in another way
    (`conversation.item.retrieve` over a WebSocket); the deltas before it had it whole. Raises
    ValueError for a message that no cutting makes short enough.
    """
    if len(message) <= limit:
        return message
    fields: dict[str, Any] = _decode(message)
    texts = sorted(_texts(fields, ""), key=lambda text: len(text.value), reverse=True)
    cut: list[str] = []
    fields["cut"] = cut
    for text in texts:
        cut.append(text.path)
        spare = limit - len(_encode(fields)) + len(_encode(text.value))
        text.set(_prefix(text.value, spare - len(_encode(MARK))))
        fitted = _encode(fields)
        if len(fitted) <= limit:
            return fitted
    raise ValueError(f"a message of {len(message)} bytes can't be cut to {limit}")


class _Text:
    """A text in a message, and where it is."""

    def __init__(self, owner: Any, key: str | int, path: str) -> None:
        self.value: str = owner[key]
        self.path = path
        self._owner, self._key = owner, key

    def set(self, value: str) -> None:
        self._owner[self._key] = value


def _texts(value: Any, path: str) -> list[_Text]:
    """All texts in it, the message's own type and ids excepted: they are short."""
    keys: Any = value if isinstance(value, dict) else range(len(value))
    found: list[_Text] = []
    for key in keys:
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value[key], str):
            found.append(_Text(value, key, name))
        elif isinstance(value[key], dict | list):
            found += _texts(value[key], name)
    return found


def _prefix(text: str, size: int) -> str:
    """As much of the text's beginning as takes at most `size` bytes in JSON, and the mark."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_encode(text[:middle])) <= size:
            low = middle
        else:
            high = middle - 1
    return text[:low] + MARK
