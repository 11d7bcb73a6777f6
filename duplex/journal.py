"""The journal: server messages that a client may not have yet, to be told again after a cut."""

from __future__ import annotations

from collections import deque


class JournalGap(Exception):
    """Messages that the client is missing are gone."""


class Journal:
    """Numbered messages, oldest first; bounded in bytes, trimmed by the client's acks.

    Above `wanted_bytes` it shrinks, little by little, with every message that is added.
    """

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self.wanted_bytes = max_bytes
        """How much is worth keeping now."""
        self._max_bytes = max_bytes
        self._messages: deque[tuple[int, bytes]] = deque()
        self._gone = 0
        """Number of the newest message that isn't kept any more."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, seq: int, message: bytes) -> None:
        """Keeps a message; the oldest go when there is no room. Numbers increase."""
        self._messages.append((seq, message))
        self.bytes += len(message)
        while self.bytes > self._max_bytes:
            self._forget()
        for _ in range(2):
            if self.bytes > self.wanted_bytes:
                self._forget()

    def ack(self, seq: int) -> None:
        """The client has everything up to `seq`."""
        while self._messages and self._messages[0][0] <= seq:
            self._forget()

    def after(self, seq: int) -> list[bytes]:
        """The messages that follow `seq`. Raises JournalGap if some are gone, or never were."""
        last = self._messages[-1][0] if self._messages else self._gone
        if not self._gone <= seq <= last:
            raise JournalGap(f"the journal has {self._gone + 1} to {last}, asked was {seq + 1}")
        return [message for number, message in self._messages if number > seq]

    def _forget(self) -> None:
        self._gone, message = self._messages.popleft()
        self.bytes -= len(message)
