"""A peer's events on their way to its owner: in order, and bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from media.rtc.events import (
    AudioFrame,
    ChannelClosed,
    ChannelOpened,
    Closed,
    Event,
    MessageReceived,
)

MAX_FRAMES: Final = 25
"""Audio frames that may wait (2 s); of more, the oldest is dropped and counted."""

MAX_MESSAGES: Final = 1024
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Of the channel's messages and of its opening and closing, what may wait. They can't be dropped:
more of them is the end of the peer."""


class Mailbox:
    """One reader, one writer, on one event loop."""

    def __init__(self) -> None:
        self.dropped_frames = 0
        """Audio frames that nobody read in time."""
        self._waiting: deque[Event] = deque()
        self._frames = 0
        self._messages = 0
        self._message_bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> bool:
        """Takes an event. False if it is the channel's and over the limits: it was not taken."""
        match event:
            case AudioFrame():
                if self._frames == MAX_FRAMES:
                    self._drop_oldest_frame()
                self._frames += 1
            case MessageReceived() | ChannelOpened() | ChannelClosed():
                size = _size(event)
                full = self._messages == MAX_MESSAGES
                if full or self._message_bytes + size > MAX_MESSAGE_BYTES:
                    return False
                self._messages += 1
                self._message_bytes += size
        self._waiting.append(event)
        self._arrived.set()
        return True

    async def get(self) -> Event | None:
        """The next event; None after `Closed`."""
        if self._ended:
            return None
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._waiting.popleft()
        match event:
            case AudioFrame():
                self._frames -= 1
            case MessageReceived() | ChannelOpened() | ChannelClosed():
                self._messages -= 1
                self._message_bytes -= _size(event)
            case Closed():
                self._ended = True
        return event

    def _drop_oldest_frame(self) -> None:
        index = next(i for i, event in enumerate(self._waiting) if isinstance(event, AudioFrame))
        del self._waiting[index]
        self._frames -= 1
        self.dropped_frames += 1


def _size(event: Event) -> int:
    return len(event.data) if isinstance(event, MessageReceived) else 0
