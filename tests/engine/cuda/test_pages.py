"""Pages: nobody's are lost, shared or read by others than their holders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.cuda.lm.pages import NOWHERE, PAGE, NoFreePages, PagePool, PageRings

SLOTS, PLACES, PAGES = 3, 3, 3 * 3 + 4


class Sessions(RuleBasedStateMachine):
    """Slots that live, share and leave in any order, against a model of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = PageRings(PagePool(PAGES), SLOTS, PLACES * PAGE)
        self.position = [0] * SLOTS
        self.kept: list[list[int]] = []

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(1, PAGE))
    def live(self, slot: int, count: int) -> None:
        while self.rings.pool.free < 2 + count // PAGE and self.kept:
            self.forget()
        for page in self.rings.prepare(slot, self.position[slot], count):
            assert page.target != page.source
        self.position[slot] += count

    @rule(slot=st.integers(0, SLOTS - 1))
    def leave(self, slot: int) -> None:
        self.rings.release(slot)
        self.position[slot] = 0

    @rule(slot=st.integers(0, SLOTS - 1))
    def keep(self, slot: int) -> None:
        pages = self.rings.held(slot)
        if pages and self.position[slot] <= PLACES * PAGE:
            for page in pages:
                self.rings.pool.share(page)
            self.kept.append(pages)

    @rule()
    def forget(self) -> None:
        if self.kept:
            for page in self.kept.pop():
                self.rings.pool.release(page)

    @rule(slot=st.integers(0, SLOTS - 1))
    def adopt(self, slot: int) -> None:
        if self.kept:
            self.leave(slot)
            self.rings.adopt(slot, self.kept[-1])
            self.position[slot] = len(self.kept[-1]) * PAGE

    @invariant()
    def every_page_has_its_holders(self) -> None:
        holders = [0] * PAGES
        for slot in range(SLOTS):
            for page in self.rings.held(slot):
                holders[page] += 1
        for pages in self.kept:
            for page in pages:
                holders[page] += 1
        assert holders == self.rings.pool._holders
        assert self.rings.pool.free == holders.count(0)

    @invariant()
    def the_newest_position_has_a_page_of_its_own(self) -> None:
        for slot in range(SLOTS):
            if self.position[slot]:
                place = (self.position[slot] - 1) // PAGE % PLACES
                assert self.rings.table[slot][place] != NOWHERE

    @invariant()
    def what_is_still_seen_has_pages(self) -> None:
        for slot in range(SLOTS):
            last = self.position[slot]
            for block in range(max(last - PLACES * PAGE, 0) // PAGE, -(-last // PAGE)):
                assert self.rings.table[slot][block % PLACES] != NOWHERE


TestSessions = Sessions.TestCase


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    rings = PageRings(PagePool(4), 2, PLACES * PAGE)
    rings.prepare(0, 0, PAGE + 5)
    rings.adopt(1, rings.held(0))

    (fresh,) = rings.prepare(1, PAGE + 5)

    assert fresh.source == rings.table[0][1]
    assert rings.table[1][0] == rings.table[0][0]
    assert rings.table[1][1] == fresh.target


def test_without_a_page_of_its_own_a_slot_gets_none_of_others() -> None:
    rings = PageRings(PagePool(1), 2, PLACES * PAGE)
    rings.prepare(0, 0)

    with pytest.raises(NoFreePages, match="all 1 pages"):
        rings.prepare(1, 0)


@given(st.integers(0, 10 * PAGE), st.integers(1, PLACES * PAGE))
def test_a_chunk_gets_all_the_places_that_it_touches(start: int, count: int) -> None:
    rings = PageRings(PagePool(PLACES), 1, PLACES * PAGE)
    rings.prepare(0, start, count)
    blocks = {position // PAGE for position in range(start, start + count)}
    if len(blocks) <= PLACES:
        assert {block % PLACES for block in blocks} == {
            place for place, page in enumerate(rings.table[0]) if page != NOWHERE
        }
