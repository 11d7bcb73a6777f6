"""A wait that ends at a deadline, or earlier when something has changed."""

from __future__ import annotations

import asyncio

from media.clock import Clock


class Alarm:
    """For one waiter: sleeps on a clock that is passed in, and can be woken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Ends the wait; without one, the next wait ends at once."""
        self._rung = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self, deadline: float | None) -> None:
        """Returns at the deadline (clock time; None is never) or after a `ring`."""
        if not self._rung and (deadline is None or deadline > self._clock.now()):
            await self._sleep(deadline)
        self._rung = False

    async def _sleep(self, deadline: float | None) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        sleeper = None
        if deadline is not None:
            sleeper = asyncio.ensure_future(self._clock.sleep_until(deadline))
            sleeper.add_done_callback(lambda _: _wake(waiter))
        try:
            await waiter
        finally:
            self._waiter = None
            if sleeper is not None:
                sleeper.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
