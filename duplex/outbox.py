"""The queue between a session and its connection: bounded, and it says what it loses."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from duplex.events import Event, OutputAudio, OutputText
from duplex.fence import Fence


class OutboxOverflow(Exception):
    """The reader is so slow that more than audio would be lost."""


class Outbox:
    """Events on their way to one reader.

    A slow reader loses its oldest audio first (`max_audio` frames are kept). One that reads
    nothing while `max_lost` frames are lost in a row, or lets `max_events` other events wait,
    loses its connection: `put` raises. `on_room` is called whenever audio has left.
    """

    def __init__(
        self,
        *,
        max_audio: int,
        max_lost: int,
        max_events: int = 256,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.dropped_audio = 0
        self.express: Callable[[OutputAudio], bool] | None = None
        """Takes a frame past the queue while the reader has nothing else to do, or says no."""
        self._on_room = on_room
        self._lost_in_a_row = 0
        self._max_lost = max_lost
        self._max_audio = max_audio
        self._max_events = max_events
        self._audio = 0
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def audio(self) -> int:
        """Frames of audio that wait."""
        return self._audio

    def put(self, event: Event) -> None:
        """Adds an event; after `close` it is dropped. Raises OutboxOverflow."""
        if self._closed:
            return
        if isinstance(event, OutputAudio):
            if self._idle and self.express is not None and self.express(event):
                return
            if self._audio == self._max_audio:
                self._drop_oldest_audio()
            self._audio += 1
        elif len(self._events) - self._audio >= self._max_events:
            raise OutboxOverflow(f"{self._max_events} events wait for their reader")
        self._events.append(event)
        self._wake()

    async def get(self) -> Event | None:
        """The next event, or None when the box is closed and empty. One reader."""
        while not self._events:
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._lost_in_a_row = 0
        event = self._events.popleft()
        if isinstance(event, OutputAudio):
            self._audio -= 1
            self._on_room()
        return event

    def flush(self, fence: Fence) -> Counter[str | None]:
        """Drops output made under an older epoch; says of which response how many frames of
        audio that were.
        """
        kept: deque[Event] = deque()
        flushed: Counter[str | None] = Counter()
        for event in self._events:
            if not isinstance(event, OutputAudio | OutputText) or fence.admits(event.fence.epoch):
                kept.append(event)
            elif isinstance(event, OutputAudio):
                flushed[event.fence.response] += 1
        self._audio -= flushed.total()
        self._events = kept
        self._on_room()
        return flushed

    def close(self) -> None:
        """No more events come; the reader gets what is left. Idempotent."""
        self._closed = True
        self._wake()

    @property
    def _idle(self) -> bool:
        """Whether the reader waits, with all that came before told."""
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _drop_oldest_audio(self) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row > self._max_lost:
            raise OutboxOverflow(f"{self._max_lost} frames of audio were lost in a row")
        for position, event in enumerate(self._events):
            if isinstance(event, OutputAudio):
                del self._events[position]
                self._audio -= 1
                self.dropped_audio += 1
                return
