"""Time as a parameter: the monotonic clock, and one for tests that moves by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Sized
from typing import Protocol, TypeVar, cast

T = TypeVar("T")


class Clock(Protocol):
    """A monotonic clock. Seconds, from an origin of its own."""

    def now(self) -> float:
        """The time in seconds."""
        ...

    async def sleep_until(self, deadline: float) -> None:
        """Returns once `now() >= deadline`; at once if it has passed."""
        ...


class SystemClock:
    """The process's monotonic clock."""

    def now(self) -> float:
        """The time in seconds."""
        return time.monotonic()

    async def sleep_until(self, deadline: float) -> None:
        """Returns once `now() >= deadline`; at once if it has passed."""
        # uvloop's timers count whole milliseconds and may fire up to one early.
        while (remaining := deadline - time.monotonic()) > 0:  # noqa: ASYNC110 (no poll: a deadline)
            await asyncio.sleep(remaining)


class VirtualClock:
    """A clock for tests: it stands still until it is moved, and then wakes sleepers in order.

    Between two deadlines it waits until no task of the event loop can run, so what a sleeper
    does at its deadline is done before time goes on. Needs asyncio's own event loop; work in
    threads and other processes is not waited for.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """The time in seconds."""
        return self._now

    async def sleep_until(self, deadline: float) -> None:
        """Returns once `now() >= deadline`; at once if it has passed."""
        if deadline <= self._now:
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (deadline, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Moves on by so many seconds, stopping at each deadline on the way."""
        end = self._now + seconds
        await settle()
        while (deadline := self._next_deadline()) is not None and deadline <= end:
            await self._wake(deadline)
        self._now = end

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Moves from deadline to deadline until this is done; gives its result.

        Raises RuntimeError if everything waits for something other than this clock.
        """
        task = asyncio.ensure_future(awaitable)
        await settle()
        while not task.done():
            deadline = self._next_deadline()
            if deadline is None:
                task.cancel()
                await asyncio.wait([task])
                raise RuntimeError("everything waits, and nothing waits for this clock")
            await self._wake(deadline)
        return task.result()

    def _next_deadline(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)  # cancelled
        return self._sleepers[0][0] if self._sleepers else None

    async def _wake(self, deadline: float) -> None:
        self._now = deadline
        while self._next_deadline() == deadline:
            heapq.heappop(self._sleepers)[2].set_result(None)
        await settle()


async def settle() -> None:
    """Lets every task of asyncio's own event loop run until all of them wait."""
    # The queue of what can run is private to asyncio; nothing public tells that it is empty.
    ready = cast(Sized, vars(asyncio.get_running_loop())["_ready"])
    idle = 0
    while idle < 2:  # one more pass takes up what sockets have brought meanwhile
        await asyncio.sleep(0)
        idle = 0 if ready else idle + 1
