"""What one client may use: messages a second, connections at a time, time to take its data."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duplex.errors import SessionError
from duplex.events import RateLimit
from web.errors import ApiError

_CONTROL_BURST_S = 2.0
_FORGIVEN = 100
"""So many messages may be refused for their rate, and one more a second; then it is abuse."""


class TokenBucket:
    """Allows `rate` takings a second, and `burst` at once after a pause. Times are in seconds of
    a monotonic clock.
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Takes one if there is one."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def take_later(self, now: float, count: int = 1) -> float:
        """Takes so many in any case; returns how long to wait until they would have been there."""
        self._refill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)

    def left(self, now: float) -> float:
        """How many could be taken at once now."""
        self._refill(now)
        return self._tokens

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now


class ControlLimit:
    """How many messages that aren't audio a client may send: `rate` a second."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._burst = rate, rate * _CONTROL_BURST_S
        self._allowed = TokenBucket(rate, self._burst, now)
        self._forgiven = TokenBucket(1.0, _FORGIVEN, now)

    def check(self, event_id: str | None, now: float) -> None:
        """Counts a message. Raises SessionError for one too many, fatal after many of those."""
        if self._allowed.take(now):
            return
        raise SessionError(
            "rate_limit_exceeded",
            "Too many messages a second that aren't audio. This one was not carried out.",
            event_id=event_id,
            type="rate_limit_error",
            fatal=not self._forgiven.take(now),
        )

    def left(self, now: float) -> tuple[RateLimit, ...]:
        """What the client may still send, as `rate_limits.updated` tells it."""
        left = self._allowed.left(now)
        return (
            RateLimit(
                name="requests",
                limit=int(self._burst),
                remaining=int(left),
                reset_s=(self._burst - left) / self._rate,
            ),
        )


class ConnectionLimit:
    """Counts open connections, in all and of each client."""

    def __init__(self, total: int, per_client: int) -> None:
        self._total = total
        self._per_client = per_client
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Connections at the moment."""
        return self._open.total()

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Holds a place for one connection. Raises ApiError 429 if there is none."""
        self.take(client)
        try:
            yield
        finally:
            self.release(client)

    def take(self, client: str) -> None:
        """Takes a place, which is to be released. Raises ApiError 429 if there is none."""
        if self._open[client] >= self._per_client:
            raise _too_many(f"You have {self._per_client} connections to this server already.")
        if self.open >= self._total:
            raise _too_many(f"This server has {self._total} connections already.")
        self._open[client] += 1

    def release(self, client: str) -> None:
        """Gives a place back."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


class WriteDeadline:
    """Calls `expired` when a write that began has not ended for `timeout_s`.

    Costs no timer per write: one runs at most, and it looks whether it came too early.
    """

    __slots__ = ("_began", "_expired", "_loop", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float, expired: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._expired = expired
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A write begins."""
        self._began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._began + self._timeout_s, self._look)

    def end(self) -> None:
        """The write has ended."""
        self._began = None

    def cancel(self) -> None:
        """No more writes come."""
        self._began = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._began is None:
            return
        deadline = self._began + self._timeout_s
        if self._loop.time() < deadline:
            self._timer = self._loop.call_at(deadline, self._look)
        else:
            self._expired()


def _too_many(message: str) -> ApiError:
    return ApiError(429, "too_many_connections", message, type="rate_limit_error")
