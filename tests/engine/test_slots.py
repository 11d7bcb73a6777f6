import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.api import NoFreeSlot
from engine.slots import SlotError, SlotState, SlotTable

SLOTS = 3


class SlotMachine(RuleBasedStateMachine):
    """The table against a plain model of it: {slot: (state, lease)}."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.slots: dict[int, tuple[SlotState, int]] = {}
        self.over: list[int] = []
        self.last = -1

    def of(self, *states: SlotState) -> list[int]:
        return [slot for slot, (state, _) in self.slots.items() if state in states]

    @rule(step=st.integers(1, 5))
    def take(self, step: int) -> None:
        lease = self.last + step
        free = [slot for slot in range(SLOTS) if slot not in self.slots]
        if not free:
            with pytest.raises(NoFreeSlot):
                self.table.take(lease)
            return
        assert self.table.take(lease) == min(free)
        self.slots[min(free)] = (SlotState.PREFILL, lease)
        self.last = lease

    @precondition(lambda self: self.last >= 0)
    @rule(data=st.data())
    def take_an_old_id(self, data: st.DataObject) -> None:
        with pytest.raises(SlotError):
            self.table.take(data.draw(st.integers(0, self.last)))

    @precondition(lambda self: self.of(SlotState.PREFILL, SlotState.LIVE))
    @rule(data=st.data())
    def go_live(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.of(SlotState.PREFILL, SlotState.LIVE)))
        state, lease = self.slots[slot]
        if state is SlotState.LIVE:
            with pytest.raises(SlotError):
                self.table.go_live(lease)
        else:
            assert self.table.go_live(lease) == slot
            self.slots[slot] = (SlotState.LIVE, lease)

    @precondition(lambda self: self.of(SlotState.PREFILL, SlotState.LIVE))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.of(SlotState.PREFILL, SlotState.LIVE)))
        lease = self.slots[slot][1]
        assert self.table.end(lease) == slot
        self.slots[slot] = (SlotState.DRAINING, lease)
        self.over.append(lease)

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        with pytest.raises(SlotError):
            self.table.end(data.draw(st.sampled_from(self.over)))

    @rule(slot=st.integers(0, SLOTS - 1))
    def recycle(self, slot: int) -> None:
        if slot in self.of(SlotState.DRAINING):
            self.table.recycle(slot)
            del self.slots[slot]
        else:
            with pytest.raises(SlotError):
                self.table.recycle(slot)

    @invariant()
    def agrees(self) -> None:
        for slot in range(SLOTS):
            state = self.slots.get(slot, (SlotState.FREE, 0))[0]
            assert self.table.state(slot) is state
        for state in SlotState:
            states = [self.table.state(slot) for slot in range(SLOTS)]
            assert self.table.count(state) == states.count(state)
        held = {lease for state, lease in self.slots.values() if state is not SlotState.DRAINING}
        assert all(self.table.holds(lease) for lease in held)
        assert not any(self.table.holds(lease) for lease in self.over)


TestSlotMachine = SlotMachine.TestCase


def test_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="slots"):
        SlotTable(0)
