"""The playback ledger: of each response, how much was sent, played and is in the history."""

from __future__ import annotations

import msgspec

from duplex.conversation import Item
from duplex.errors import SessionError

_KEPT = 64
"""Responses whose acks may still come."""


class _Entry(msgspec.Struct):
    item: Item
    turn: int
    played_ms: float = 0.0
    committed_ms: float = 0.0
    settled: bool = False


class Playback(msgspec.Struct, frozen=True):
    """What the ledger says of a response after an ack."""

    response_id: str
    item_id: str
    played_ms: float
    committed_ms: float


class Ledger:
    """Acks of one session. History holds what was played: an ack commits its item up to there,
    and what nobody has committed when the user's next turn comes is forgotten.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @property
    def last(self) -> str | None:
        """The newest response, over or not."""
        return next(reversed(self._entries), None)

    def begin(self, response_id: str, item: Item, turn: int) -> None:
        """A response of the user's `turn` begins; its one item grows with it."""
        self._entries[response_id] = _Entry(item, turn)
        while len(self._entries) > _KEPT:
            _settle(self._entries.pop(next(iter(self._entries))))

    def end(self, response_id: str, *, commit: bool) -> None:
        """A response is over; with `commit` all that was sent of it counts as played."""
        entry = self._entries.get(response_id)
        if entry is not None and commit:
            entry.played_ms = entry.committed_ms = entry.item.parts[0].audio_ms

    def take_back(self, response_id: str | None, ms: float) -> None:
        """So much of a response never left: nobody has heard its last words."""
        entry = None if response_id is None else self._entries.get(response_id)
        if entry is not None:
            entry.item.parts[0].take_back(ms)
            if entry.item.status == "completed":
                entry.item.status = "incomplete"

    def next_turn(self, turn: int, current: str | None) -> None:
        """The user's `turn` begins: the history of the responses before it is closed."""
        for response_id, entry in self._entries.items():
            if entry.turn < turn and response_id != current and not entry.settled:
                _settle(entry)

    def ack(
        self,
        *,
        response_id: str | None,
        item_id: str | None,
        current: str | None,
        played_ms: float,
        committed_ms: float | None,
        truncate: bool,
    ) -> Playback:
        """Records how much was played, in milliseconds; it never goes back.

        Without ids it means the response in progress. With `truncate` the item forgets what
        comes after. Raises SessionError: nothing in progress, an item that isn't the response's,
        or a response of an earlier turn.
        """
        if response_id is None:
            response_id = item_id.removeprefix("item_") if item_id else current
        if response_id is None:
            raise SessionError("playback_item_mismatch", "No response is in progress.")
        entry = self._entries.get(response_id)
        if entry is None or item_id not in (None, entry.item.id):
            raise SessionError(
                "playback_item_mismatch",
                "The item is not of this session's response.",
                param="item_id" if item_id else "response_id",
            )
        if entry.settled:
            raise SessionError(
                "playback_ack_too_late",
                "The user's next turn has been committed; the history is settled.",
                param="response_id",
            )
        part = entry.item.parts[0]
        made_ms = part.audio_ms
        entry.played_ms = max(entry.played_ms, min(played_ms, made_ms))
        committed = played_ms if committed_ms is None else committed_ms
        entry.committed_ms = max(entry.committed_ms, min(committed, made_ms))
        if truncate and part.type == "output_audio":
            entry.item.truncate(0, entry.committed_ms)
        return Playback(response_id, entry.item.id, entry.played_ms, entry.committed_ms)


def _settle(entry: _Entry) -> None:
    """The history is closed: what was not committed is forgotten; text is read, not played."""
    entry.settled = True
    part = entry.item.parts[0]
    if part.type == "output_audio" and entry.committed_ms < part.audio_ms:
        entry.item.truncate(0, entry.committed_ms)
