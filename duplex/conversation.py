"""A conversation's items, and of the agent's speech only as much as was heard."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from duplex.errors import SessionError
from duplex.ids import new_id

ItemType = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
PartType = Literal["input_text", "input_audio", "output_text", "output_audio"]

MAX_ITEMS = 1_000
"""Items of a conversation; beyond, and beyond `MAX_CHARS`, the oldest are forgotten."""
MAX_CHARS = 1 << 20
"""Characters of all items together, as they were added."""
MAX_ITEM_CHARS = 1 << 18
"""Characters of one item that a client makes."""
MAX_SPOKEN_CHARS = 1 << 16
"""Characters of one part's speech, more than an hour of it; beyond, the oldest are forgotten."""
_PART_CHARS = 64
"""What a part counts for beside its text."""


class Part(msgspec.Struct, kw_only=True):
    """A piece of a message's content: what was said, as far as there are words for it."""

    type: PartType
    text: str | None = None
    """Words that came as a whole; None for speech, see `words`."""
    audio_ms: float = 0.0
    """Length of the audio, for the audio types."""
    pieces: deque[tuple[float, str]] = msgspec.field(default_factory=deque)
    """Words with the time in the audio, in milliseconds, where they begin."""
    spoken_chars: int = 0
    """Characters in `pieces`."""

    @property
    def words(self) -> str | None:
        """What was said or written; None for speech that nobody transcribed."""
        return "".join(text for _, text in self.pieces) if self.pieces else self.text

    def speak(self, ms: float, text: str) -> None:
        """Adds audio of that length, and words that begin with it."""
        if text:
            self.pieces.append((self.audio_ms, text))
            self.spoken_chars += len(text)
            while self.spoken_chars > MAX_SPOKEN_CHARS:
                self.spoken_chars -= len(self.pieces.popleft()[1])
        self.audio_ms += ms

    def cut(self, ms: float) -> None:
        """Forgets the words that come after that time."""
        while self.pieces and self.pieces[-1][0] >= ms:
            self.spoken_chars -= len(self.pieces.pop()[1])
        if ms <= 0:
            self.text = None

    def take_back(self, ms: float) -> None:
        """The last of the audio was never sent: what follows comes in its place."""
        self.audio_ms = max(0.0, self.audio_ms - ms)
        self.cut(self.audio_ms)


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
        parts = [
            Part(type=part.type, text=part.words, audio_ms=part.audio_ms) for part in self.parts
        ]
        return msgspec.structs.replace(self, parts=parts)

    @property
    def chars(self) -> int:
        """How much the item holds, in characters, as the conversation counts them."""
        own = (self.name, self.call_id, self.arguments, self.output)
        return sum(len(text) for text in own if text) + sum(
            _PART_CHARS + len(part.text or "") + part.spoken_chars for part in self.parts
        )

    def truncate(self, content_index: int, audio_end_ms: float) -> float:
        """Keeps what was heard of the agent's speech; returns where it ends, in milliseconds.

        A position past the end is taken for the end: players run a little ahead. Raises
        SessionError for items and parts that aren't the agent's speech, and for negative times.
        """
        if self.role != "assistant":
            raise SessionError(
                "invalid_value", "Only the agent's messages can be truncated.", param="item_id"
            )
        if not 0 <= content_index < len(self.parts):
            raise SessionError(
                "invalid_value", f"The item has no part {content_index}.", param="content_index"
            )
        part = self.parts[content_index]
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
        if self.status != "in_progress":  # else more is on its way, and keeps its place in time
            part.audio_ms, self.status = end, "incomplete"
        return end


class Conversation:
    """Items in order. Every refusal names the field at fault; nothing has changed then.

    Bounded: the oldest items make room for new ones, but for those still in progress.
    """

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}
        self._order: list[str] = []
        self._sizes: dict[str, int] = {}
        """Characters of the items as they were added: speech that grows is bounded by itself."""
        self._chars = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

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
        or an unknown `after`, and for an item that is too large.
        """
        if item.id in self._items:
            raise SessionError(
                "invalid_value", f"There is an item {item.id!r} already.", param="item.id"
            )
        if item.chars > MAX_ITEM_CHARS:
            raise SessionError(
                "invalid_value", f"An item holds at most {MAX_ITEM_CHARS} characters.", param="item"
            )
        if after is not None and after != "root":
            self._place(after, "previous_item_id")
        size = item.chars
        self._make_room(size, kept=after)
        if after is None:
            place = len(self._order)
        elif after == "root":
            place = 0
        else:
            place = self._order.index(after) + 1
        self._order.insert(place, item.id)
        self._items[item.id] = item
        self._sizes[item.id] = size
        self._chars += size
        return self._order[place - 1] if place else None

    def before(self, item_id: str) -> str | None:
        """The item before that one, None for the first; raises SessionError for an unknown id."""
        place = self._place(item_id, "item_id")
        return self._order[place - 1] if place else None

    def get(self, item_id: str) -> Item:
        """The item; raises SessionError if there is none."""
        self._place(item_id, "item_id")
        return self._items[item_id]

    def delete(self, item_id: str) -> None:
        """Removes an item; raises SessionError if there is none."""
        del self._order[self._place(item_id, "item_id")]
        del self._items[item_id]
        self._chars -= self._sizes.pop(item_id)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: float) -> float:
        """Keeps what was heard of an item: see `Item.truncate`. Raises SessionError."""
        return self.get(item_id).truncate(content_index, audio_end_ms)

    def _make_room(self, chars: int, kept: str | None) -> None:
        """Forgets the oldest items until one more of so many characters fits in."""
        place = 0
        while len(self._order) >= MAX_ITEMS or self._chars + chars > MAX_CHARS:
            if place == len(self._order):
                return  # no more than those in progress, and the one before the new one
            item = self._items[self._order[place]]
            if item.status == "in_progress" or item.id == kept:
                place += 1
            else:
                self.delete(item.id)

    def _place(self, item_id: str, param: str) -> int:
        if item_id not in self._items:
            raise SessionError("item_not_found", f"There is no item {item_id!r}.", param=param)
        return self._order.index(item_id)
