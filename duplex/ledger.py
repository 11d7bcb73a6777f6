"""The playback ledger: of each response, how much was sent, played and is in the history."""

from __future__ import annotations

import msgspec

from duplex.conversation import Conversation
from duplex.errors import SessionError
from duplex.responses import item_of

_KEPT = 64
"""Responses whose acks may still come."""


class _Entry(msgspec.Struct):
    turn: int
    played_ms: float = 0.0
    committed_ms: float = 0.0


class Playback(msgspec.Struct, frozen=True):
    """What the ledger says of a response after an ack."""

    response_id: str
    item_id: str
    played_ms: float
    committed_ms: float


class Ledger:
    """Acks of one session. History holds what was played: an ack commits its item up to there."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._entries: dict[str, _Entry] = {}

    def begin(self, response_id: str, turn: int) -> None:
        """A response of the user's `turn` begins."""
        self._entries[response_id] = _Entry(turn)
        while len(self._entries) > _KEPT:
            del self._entries[next(iter(self._entries))]

    def ack(
        self,
        *,
        response_id: str | None,
        item_id: str | None,
        current: str | None,
        turn: int,
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
        if entry is None or item_id not in (None, item_of(response_id)):
            raise SessionError(
                "playback_item_mismatch",
                "The item is not of this session's response.",
                param="item_id" if item_id else "response_id",
            )
        if entry.turn < turn and response_id != current:
            raise SessionError(
                "playback_ack_too_late",
                "The user's next turn has been committed; the history is settled.",
                param="response_id",
            )
        part = self._conversation.get(item_of(response_id)).parts[0]
        entry.played_ms = max(entry.played_ms, min(played_ms, part.audio_ms))
        committed = played_ms if committed_ms is None else committed_ms
        entry.committed_ms = max(entry.committed_ms, min(committed, part.audio_ms))
        if truncate:
            self._conversation.truncate(item_of(response_id), 0, entry.committed_ms)
        return Playback(response_id, item_of(response_id), entry.played_ms, entry.committed_ms)

    def settle(self, response_id: str, *, all_of_it: bool) -> None:
        """The response's history is closed: what was not committed is forgotten."""
        entry = self._entries.get(response_id)
        if entry is not None and not all_of_it:
            self._conversation.truncate(item_of(response_id), 0, entry.committed_ms)
