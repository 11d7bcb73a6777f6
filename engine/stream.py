"""The way up, on the event loop: steps in order, then how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from engine.api import EngineLost, StepOutput


class StepStream:
    """A queue of steps for one reader. Its owner bounds it by `waiting`."""

    def __init__(self) -> None:
        self._items: deque[list[StepOutput] | EngineLost] = deque()
        self._changed = asyncio.Event()
        self._ended = False
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
        if not (self._items and isinstance(self._items[-1], EngineLost)):
            self._items.append(error)
            self._changed.set()

    def end(self) -> None:
        """No more steps: the reader ends after those that wait."""
        self._ended = True
        self._changed.set()

    async def read(self) -> AsyncIterator[list[StepOutput]]:
        """Yields steps. Raises EngineLost for a death; the next call goes on behind it."""
        while True:
            while self._items:
                item = self._items.popleft()
                if isinstance(item, EngineLost):
                    raise item
                self.waiting -= len(item)
                yield item
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()
