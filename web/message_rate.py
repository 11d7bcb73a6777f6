"""How fast one client's messages are read, whatever carries them."""

from __future__ import annotations

from typing import Final

from web.context import Context
from web.limits import TokenBucket

_BURST_S: Final = 0.1
_MESSAGE_BYTES: Final = 1 << 14
"""A larger message counts as several: it takes as long to read."""


class MessageRate:
    """Holds up who reads a client's messages while they come too fast."""

    def __init__(self, context: Context) -> None:
        self._clock, self._counters = context.runtime.clock, context.counters
        rate = context.config.message_rate
        self._bucket = TokenBucket(rate, rate * _BURST_S, self._clock.now())

    async def take(self, size: int = 0) -> None:
        """Counts a message of so many bytes; returns when the rate allows it."""
        now = self._clock.now()
        pause = self._bucket.take_later(now, 1 + size // _MESSAGE_BYTES)
        if pause > 0:
            self._counters.paused_reads += 1
            await self._clock.sleep_until(now + pause)
