"""How long to wait before what has failed is started again."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Twice as long after each failure in a row."""

    first_s: float = 0.25
    longest_s: float = 30.0
    """Also how long it must live for the next wait to be `first_s` again."""

    def delay_s(self, failures: int) -> float:
        """The wait after so many failures in a row before this one."""
        return float(min(self.longest_s, self.first_s * 2 ** min(failures, 32)))
