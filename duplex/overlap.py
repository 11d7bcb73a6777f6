"""What to do when the user speaks while the agent does. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from duplex.settings import OverlapPolicy

Action = Literal["listen", "barge_in"]


class Decision(msgspec.Struct, frozen=True):
    """What was decided, and why."""

    action: Action
    reason: str


class Overlap:
    """Decides once for each stretch of the user's speech over the agent's.

    A stretch that reaches `barge_in_ms` interrupts; one that ends within `short_ack_ms` is an
    acknowledgement ("uh huh") and does not, nor does anything in between.
    """

    def __init__(
        self, policy: OverlapPolicy, *, short_ack_ms: float = 0.0, barge_in_ms: float = 0.0
    ) -> None:
        self.policy = policy
        self.short_ack_ms = short_ack_ms
        self.barge_in_ms = barge_in_ms
        self._overlap_ms = 0.0
        self._decided = False

    def hear(self, *, user_speaks: bool, agent_speaks: bool, ms: float) -> Decision | None:
        """Takes the next stretch of time; returns a decision when one falls."""
        if user_speaks and agent_speaks:
            self._overlap_ms += ms
            if self._decided or self._overlap_ms < max(self.barge_in_ms, self.short_ack_ms):
                return None
            self._decided = True
            if self.policy == "listen_only":
                return Decision("listen", "policy")
            return Decision("barge_in", "user_speech")
        overlap, decided = self._overlap_ms, self._decided
        if user_speaks:
            return None
        self._overlap_ms, self._decided = 0.0, False
        if overlap == 0 or decided:
            return None
        short = overlap <= self.short_ack_ms
        return Decision("listen", "short_acknowledgement" if short else "brief_speech")
