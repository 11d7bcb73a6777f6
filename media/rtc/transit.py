"""How long packets take, compared with the quickest of the last seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

MIN_TARGET_S: Final = 0.010
MAX_TARGET_S: Final = 0.200

_GUARD_S = 0.005
_BUCKET_S = 0.5
_BASE_BUCKETS = 8
_PEAK_BUCKETS = 4


class Transit:
    """Sliding extremes of transit time: arrival minus send time, in seconds.

    The two clocks are unrelated, so only differences mean something. `base` is the quickest of
    the last 4 s, and so follows a drifting clock and a changed route; `target` is how much
    slower than that the slowest of the last 2 s was, within bounds.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float, float]] = deque()  # (start, min, max)
        self.base = 0.0
        """Transit of the quickest packet."""
        self.target = MIN_TARGET_S
        """How long past `base` a packet is worth waiting for."""

    @property
    def spread(self) -> float:
        """The slowest packet of the last 2 s against `base`, unbounded."""
        return self._peak() - self.base if self._buckets else 0.0

    def observe(self, transit: float, now: float) -> None:
        """Takes one packet's transit time."""
        buckets = self._buckets
        oldest = now - _BASE_BUCKETS * _BUCKET_S
        while buckets and buckets[0][0] < oldest:
            buckets.popleft()
        if buckets and now - buckets[-1][0] < _BUCKET_S:
            start, low, high = buckets[-1]
            if low <= transit <= high:
                return
            buckets[-1] = (start, min(low, transit), max(high, transit))
        else:
            buckets.append((now, transit, transit))
        self.base = min(low for _, low, _ in buckets)
        self.target = min(max(self._peak() - self.base + _GUARD_S, MIN_TARGET_S), MAX_TARGET_S)

    def reset(self) -> None:
        """Forgets everything, for a stream with another clock."""
        self._buckets.clear()

    def _peak(self) -> float:
        recent = list(self._buckets)[-_PEAK_BUCKETS:]
        return max(high for _, _, high in recent)
