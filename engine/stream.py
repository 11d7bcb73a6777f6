"""The way up, on the event loop: steps in order, then how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from engine.api import EngineLost, StepOutput


class StepStream:
    """A queue of an engine's steps. Its owner bounds it by `waiting`."""

    def __init__(self, changed: asyncio.Event) -> None:
        """`changed` is set whenever there is something new; see `read`."""
        self._items: deque[list[StepOutput] | EngineLost] = deque()
        self._changed = changed
        self.ended = False
        """No more steps come."""
        self.waiting = 0
        """Outputs that nobody has read yet."""

    def put(self, outputs: list[StepOutput]) -> None:
        """Appends a step."""
        self.waiting += len(outputs)
        self._items.append(outputs)
        self._changed.set()

    def lose(self, error: EngineLost) -> None:
        """The engine died: the reader gets this exception after the steps before it.

        Deaths without a step between them count as one.
        """
        if self._items and isinstance(last := self._items[-1], EngineLost):
            self._items[-1] = EngineLost(str(last), last.leases | error.leases)
        else:
            self._items.append(error)
        self._changed.set()

    def end(self) -> None:
        """No more steps: the reader ends after those that wait."""
        self.ended = True
        self._changed.set()

    def take(self) -> list[StepOutput] | None:
        """The step that waits longest, if one does. Raises EngineLost for a death, once."""
        if not self._items:
            return None
        item = self._items.popleft()
        if isinstance(item, EngineLost):
            raise item
        self.waiting -= len(item)
        return item


async def read(
    streams: Sequence[StepStream], changed: asyncio.Event
) -> AsyncIterator[list[StepOutput]]:
    """Yields the steps of streams that share `changed`, in turns, and ends when all have ended.

    Raises EngineLost for a death of any; the next call goes on behind it. Has one consumer.
    """
    while True:
        found = False
        for stream in streams:
            if (step := stream.take()) is not None:
                found = True
                yield step
        if found:
            continue
        if all(stream.ended for stream in streams):
            return
        changed.clear()
        await changed.wait()
