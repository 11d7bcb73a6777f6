"""Pages of the paged ring KV: who holds which, on the host.

A page is PAGE positions of all layers. A slot's ring has a place for each page of its context; a
place gets a page when the session comes to it. Pages of a prompt are shared by all sessions that
began with it, until one of them writes to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import EngineError

PAGE = 64
"""Positions in a page."""
NOWHERE = -1
"""A place of a ring without a page."""


class NoFreePages(EngineError):
    """Every page is in use."""


class PagePool:
    """Pages 0..pages-1, each held by any number of owners."""

    def __init__(self, pages: int) -> None:
        self._holders = [0] * pages
        self._free = list(range(pages - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free page, with one holder. Raises NoFreePages."""
        if not self._free:
            raise NoFreePages(f"all {len(self)} pages are in use")
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """One holder more."""
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; without any the page is free."""
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)

    def shared(self, page: int) -> bool:
        """Whether there is more than one holder."""
        return self._holders[page] > 1


@dataclass(frozen=True, slots=True)
class Fresh:
    """A page that has come to a ring: its content is another's, which it must first become."""

    target: int
    source: int | None
    """None: zeros."""


class PageRings:
    """The rings of all slots: `table[slot][place]` is a page, or NOWHERE."""

    def __init__(self, pool: PagePool, slots: int, context: int) -> None:
        self.pool = pool
        self.places = -(-context // PAGE)
        """Of a ring: the fewest pages that hold `context` positions."""
        self.table = [[NOWHERE] * self.places for _ in range(slots)]

    def held(self, slot: int) -> list[int]:
        """The pages of a slot."""
        return [page for page in self.table[slot] if page != NOWHERE]

    def prepare(self, slot: int, position: int, count: int = 1) -> list[Fresh]:
        """Makes the places of positions `position`..`position + count - 1` writable.

        Returns the pages that must be filled first. Raises NoFreePages.
        """
        fresh: list[Fresh] = []
        for block in range(position // PAGE, (position + count - 1) // PAGE + 1):
            place = block % self.places
            page = self.table[slot][place]
            if page == NOWHERE:
                own = self.pool.take()
                fresh.append(Fresh(own, None))
                self.table[slot][place] = own
            elif self.pool.shared(page):
                own = self.pool.take()
                # The rest of the ring's last round is still to be seen.
                fresh.append(Fresh(own, page))
                self.pool.release(page)
                self.table[slot][place] = own
        return fresh

    def adopt(self, slot: int, pages: Sequence[int]) -> None:
        """Gives an empty slot shared pages as its first ones."""
        for place, page in enumerate(pages):
            self.pool.share(page)
            self.table[slot][place] = page

    def release(self, slot: int) -> None:
        """Gives all pages of a slot back."""
        for page in self.held(slot):
            self.pool.release(page)
        self.table[slot] = [NOWHERE] * self.places
