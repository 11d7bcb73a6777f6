"""Prompts that were computed before, for the next session with the same voice and text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a prompt leaves in a slot row before its last call."""

    frames: int
    """Of the whole prompt."""
    kv: Tensor
    """The ring's used cells: [layers, min(frames - 1, context), 2, heads, head_dim]."""
    columns: Tensor
    """[2, channels] int64: the last two columns of the prompt."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kv.nbytes + self.columns.nbytes


class PrefixCache:
    """The most recently used prefixes, at most `max_bytes` of them.

    A key must name all that a prefix depends on: the voice and the text of its prompt.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """In use."""
        self.hits = 0
        self.misses = 0
        self._prefixes: OrderedDict[Hashable, Prefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prefixes)

    def get(self, key: Hashable) -> Prefix | None:
        """The prefix of `key`; counts a hit or a miss."""
        prefix = self._prefixes.get(key)
        if prefix is None:
            self.misses += 1
            return None
        self.hits += 1
        self._prefixes.move_to_end(key)
        return prefix

    def put(self, key: Hashable, prefix: Prefix) -> None:
        """Keeps a prefix, at the cost of those unused for longest; not if it alone is too big."""
        if prefix.nbytes > self.max_bytes:
            return
        replaced = self._prefixes.pop(key, None)
        if replaced is not None:
            self.bytes -= replaced.nbytes
        self._prefixes[key] = prefix
        self.bytes += prefix.nbytes
        while self.bytes > self.max_bytes:
            _, oldest = self._prefixes.popitem(last=False)
            self.bytes -= oldest.nbytes
