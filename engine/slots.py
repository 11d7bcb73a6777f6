"""The slot table: which model row is leased to whom, and what may become of it."""

from __future__ import annotations

import enum
import heapq
from collections import Counter

from engine.api import EngineError, NoFreeSlot


class SlotState(enum.Enum):
    """FREE -> PREFILL -> LIVE -> DRAINING -> FREE; a lease may also end while it prefills."""

    FREE = "free"
    PREFILL = "prefill"
    LIVE = "live"
    DRAINING = "draining"
    """The lease has ended; the row isn't as new yet."""


class SlotError(EngineError):
    """A transition that the slot's state doesn't allow: a fault of the caller's code."""


class SlotTable:
    """Rows 0..slots-1. The lowest free one is leased first, so that batches stay contiguous.

    Lease ids come from the owner and only ever grow: an id that isn't above all earlier ones is
    refused, so none is used twice, and an owner that counts on across engines gets ids that are
    unique in all of them.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._states = [SlotState.FREE] * slots
        self._counts = Counter({SlotState.FREE: slots})
        self._free = list(range(slots))
        self._slots: dict[int, int] = {}
        self._last = -1

    def __len__(self) -> int:
        return len(self._states)

    def take(self, lease: int) -> int:
        """FREE -> PREFILL: leases the lowest free slot and returns it. Raises NoFreeSlot."""
        if lease <= self._last:
            raise SlotError(f"lease {lease} isn't above the last one, {self._last}")
        if not self._free:
            raise NoFreeSlot(f"all {len(self)} slots are in use")
        slot = heapq.heappop(self._free)
        self._last = lease
        self._slots[lease] = slot
        self._move(slot, SlotState.FREE, SlotState.PREFILL)
        return slot

    def go_live(self, lease: int) -> int:
        """PREFILL -> LIVE. Returns the slot."""
        slot = self._held(lease)
        self._move(slot, SlotState.PREFILL, SlotState.LIVE)
        return slot

    def end(self, lease: int) -> int:
        """PREFILL or LIVE -> DRAINING: the lease ends, once. Returns the slot."""
        slot = self._held(lease)
        self._move(slot, self._states[slot], SlotState.DRAINING)
        del self._slots[lease]
        return slot

    def recycle(self, slot: int) -> None:
        """DRAINING -> FREE, when the row is as new."""
        self._move(slot, SlotState.DRAINING, SlotState.FREE)
        heapq.heappush(self._free, slot)

    def holds(self, lease: int) -> bool:
        """True from `take` to `end`."""
        return lease in self._slots

    def state(self, slot: int) -> SlotState:
        """The state of a slot."""
        return self._states[slot]

    def count(self, state: SlotState) -> int:
        """How many slots are in a state."""
        return self._counts[state]

    def _held(self, lease: int) -> int:
        try:
            return self._slots[lease]
        except KeyError:
            raise SlotError(f"lease {lease} isn't held") from None

    def _move(self, slot: int, source: SlotState, target: SlotState) -> None:
        if self._states[slot] is not source:
            raise SlotError(f"slot {slot} is {self._states[slot].value}, not {source.value}")
        self._states[slot] = target
        self._counts[source] -= 1
        self._counts[target] += 1
