"""A conversation's items, and of the agent's speech only as much as was heard."""

from __future__ import annotations

from typing import Literal

import msgspec

from duplex.errors import SessionError
from duplex.ids import new_id

ItemType = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
PartType = Literal["input_text", "input_audio", "output_text", "output_audio"]

MAX_ITEMS = 10_000


class Part(msgspec.Struct, kw_only=True):
    """A piece of a message's content: what was said, as far as there are words for it."""

    type: PartType
    text: str | None = None
    """The words; None for speech that nobody transcribed."""
    audio_ms: float = 0.0
    """Length of the audio, for the audio types."""
    pieces: list[tuple[float, str]] = msgspec.field(default_factory=list)
    """Words with the time in the audio, in milliseconds, where they begin."""

    def speak(self, ms: float, text: str) -> None:
        """Adds audio of that length, and words that begin with it."""
        if text:
            self.pieces.append((self.audio_ms, text))
            self.text = (self.text or "") + text
        self.audio_ms += ms

    def cut(self, ms: float) -> None:
        """Forgets what comes after that time."""
        self.pieces = [piece for piece in self.pieces if piece[0] < ms]
        self.text = "".join(text for _, text in self.pieces)
        self.audio_ms = min(self.audio_ms, ms)


class Item(msgspec.Struct, kw_only=True):
    """One item of a conversation, in OpenAI's sense."""

    id: str
    type: ItemType = "message"
    status: ItemStatus = "completed"
    role: Role | None = None
    parts: list[Part] = msgspec.field(default_factory=list)
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | None = None

    def snapshot(self) -> Item:
        """The item as it is now; what happens to it later doesn't show."""
        parts = [msgspec.structs.replace(part, pieces=[]) for part in self.parts]
        return msgspec.structs.replace(self, parts=parts)


class Conversation:
    """Items in order. Every refusal names the field at fault; nothing has changed then."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}
        self._order: list[str] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def items(self) -> list[Item]:
        """The items, oldest first."""
        return [self._items[item_id] for item_id in self._order]

    @property
    def last_id(self) -> str | None:
        """The newest item."""
        return self._order[-1] if self._order else None

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Adds an item after another one: "root" is the beginning, None the end.

        Returns the id of the item before it. Raises SessionError for an id that is there already
        or an unknown `after`.
        """
        if item.id in self._items:
            raise SessionError(
                "invalid_value", f"There is an item {item.id!r} already.", param="item.id"
            )
        if len(self._order) >= MAX_ITEMS:
            raise SessionError("invalid_value", f"A conversation has at most {MAX_ITEMS} items.")
        if after is None:
            place = len(self._order)
        elif after == "root":
            place = 0
        else:
            place = self._place(after, "previous_item_id") + 1
        self._order.insert(place, item.id)
        self._items[item.id] = item
        return self._order[place - 1] if place else None

    def get(self, item_id: str) -> Item:
        """The item; raises SessionError if there is none."""
        self._place(item_id, "item_id")
        return self._items[item_id]

    def delete(self, item_id: str) -> None:
        """Removes an item; raises SessionError if there is none."""
        del self._order[self._place(item_id, "item_id")]
        del self._items[item_id]

    def truncate(self, item_id: str, content_index: int, audio_end_ms: float) -> float:
        """Keeps what was heard of the agent's speech; returns where it ends, in milliseconds.

        A position past the end is taken for the end: players run a little ahead. Raises
        SessionError for items and parts that aren't the agent's speech, and for negative times.
        """
        item = self.get(item_id)
        if item.role != "assistant":
            raise SessionError(
                "invalid_value", "Only the agent's messages can be truncated.", param="item_id"
            )
        if not 0 <= content_index < len(item.parts):
            raise SessionError(
                "invalid_value", f"The item has no part {content_index}.", param="content_index"
            )
        part = item.parts[content_index]
        if part.type != "output_audio":
            raise SessionError(
                "invalid_value", "Only audio can be truncated.", param="content_index"
            )
        if audio_end_ms < 0:
            raise SessionError(
                "invalid_value", "audio_end_ms must not be negative.", param="audio_end_ms"
            )
        end = min(audio_end_ms, part.audio_ms)
        part.cut(end)
        if item.status == "completed":
            item.status = "incomplete"
        return end

    def _place(self, item_id: str, param: str) -> int:
        if item_id not in self._items:
            raise SessionError("item_not_found", f"There is no item {item_id!r}.", param=param)
        return self._order.index(item_id)
