"""A wait that ends at a deadline, or earlier when something has changed."""

from __future__ import annotations

import asyncio

from media.clock import Clock


class Alarm:
    """For one waiter: sleeps on a clock that is passed in, and can be woken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Ends the wait; without one, the next wait ends at once."""
        self._rung.set()

    async def wait(self, deadline: float | None) -> None:
        """Returns at the deadline (clock time; None is never) or after a `ring`."""
        if deadline is None:
            await self._rung.wait()
        elif not self._rung.is_set() and deadline > self._clock.now():
            tasks = [
                asyncio.ensure_future(self._rung.wait()),
                asyncio.ensure_future(self._clock.sleep_until(deadline)),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        self._rung.clear()
