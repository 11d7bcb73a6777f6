"""Sessions are rows: each goes its own way, whoever else is there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_models import TINY, codes, frame, listen, load, tensors, tiny
from msgspec.structs import replace
from torch import Tensor

from engine.lm.state import LMState
from engine.rows import Rows
from engine.sampling import GREEDY, Sampling

SLOTS = 3


def snapshot(state: LMState, row: int) -> tuple[list[Tensor], int, Sampling]:
    """All that a row consists of."""
    tensors = [state.ring.kv[:, row], state.grid.tokens[row], state.calls[row]]
    return [tensor.clone() for tensor in tensors], state.seen[row], state.sampling.rows[row]


def same(one: LMState, row: int, kept: tuple[list[Tensor], int, Sampling]) -> bool:
    tensors, seen, sampling = snapshot(one, row)
    return (seen, sampling) == kept[1:] and all(map(torch.equal, tensors, kept[0]))


def sampling_of(session: int) -> Sampling:
    return GREEDY if session % 3 == 0 else Sampling(0.9, 5, 1.2, 7 * (session % 2), seed=session)


Schedule = list[list[int] | int]
"""Each entry: rows to step, in this order; or a row that a new session takes."""

schedules = st.lists(
    st.one_of(
        st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True),
        st.integers(0, SLOTS - 1),
    ),
    min_size=1,
    max_size=40,
)


class House:
    """Follows a schedule, and checks that rows which aren't named keep their bits."""

    def __init__(self, schedule: Schedule, *, fixed: bool) -> None:
        self.state = tiny().state(SLOTS)
        self.fixed = fixed
        self.seats: list[int] = []
        """Each row's session now."""
        self.made: list[list[Tensor]] = []
        """What each session made."""
        for row in range(SLOTS):
            self.seats.append(0)
            self.join(row)
        for entry in schedule:
            named = [entry] if isinstance(entry, int) else entry
            others = {row: snapshot(self.state, row) for row in range(SLOTS) if row not in named}
            if isinstance(entry, int):
                self.state.reset(Rows([entry]))
                self.join(entry)
            else:
                self.step(entry)
            for row, before in others.items():
                assert same(self.state, row, before)

    def join(self, row: int) -> None:
        self.seats[row] = len(self.made)
        self.state.set_sampling(row, sampling_of(len(self.made)))
        self.made.append([])

    def step(self, rows: list[int]) -> None:
        sessions = [self.seats[row] for row in rows]
        user = torch.stack([codes(41, session)[len(self.made[session])] for session in sessions])
        if self.fixed:
            made = torch.cat(
                [
                    frame(tiny().step(self.state, Rows([row], copy=True), heard[None]))
                    for row, heard in zip(rows, user, strict=True)
                ]
            )
        else:
            made = frame(tiny().step(self.state, Rows(rows), user))
        for session, tokens in zip(sessions, made, strict=True):
            self.made[session].append(tokens)


def alone(session: int, frames: int) -> tuple[LMState, Tensor]:
    """The same session on a new state of one row."""
    state = tiny().state(1)
    state.set_sampling(0, sampling_of(session))
    user = codes(41, session)[:frames]
    return state, listen(tiny(), state, 0, user) if frames else user


@settings(max_examples=30)
@given(schedules, st.booleans())
def test_rows_without_a_frame_keep_their_bits(schedule: Schedule, fixed: bool) -> None:
    House(schedule, fixed=fixed)


@settings(max_examples=30)
@given(schedules)
def test_fixed_rows_make_and_remember_the_same_bits_as_alone(schedule: Schedule) -> None:
    house = House(schedule, fixed=True)
    for session, made in enumerate(house.made):
        fresh, expected = alone(session, len(made))
        assert torch.equal(torch.stack(made) if made else expected, expected)
        if session in house.seats:
            assert same(house.state, house.seats.index(session), snapshot(fresh, 0))


def test_a_reset_row_cannot_be_told_from_a_new_one() -> None:
    state, fresh = tiny().state(2), tiny().state(2)
    state.set_sampling(1, Sampling(1, 2, 3, 4, 5))
    listen(tiny(), state, 1, codes(20))
    assert not same(state, 1, snapshot(fresh, 1))
    state.reset(Rows([1]))
    assert same(state, 1, snapshot(fresh, 1))


def test_a_poisoned_row_does_not_outlive_its_reset() -> None:
    state = tiny().state(1)
    state.ring.kv.fill_(float("nan"))
    state.reset(Rows([0]))
    state.set_sampling(0, GREEDY)
    assert torch.equal(listen(tiny(), state, 0, codes(41)[:9]), alone(0, 9)[1])


def test_the_first_calls_complete_no_frame() -> None:
    state = tiny().state(2)
    step = tiny().step(state, Rows([0, 1]), codes(2))
    assert step.heard.tolist() == [False, False]
    assert (frame(step) == -2).all()
    tiny().step(state, Rows([0]), codes(1))
    step = tiny().step(state, Rows([0, 1]), codes(2))
    assert step.heard.tolist() == [True, True]
    assert (frame(step) >= 0).all()


def test_a_frame_is_gathered_from_the_columns_of_its_delays() -> None:
    config = replace(TINY, delays=(1, 0, 2, 2, 1, 2, 2, 2, 3, *[2] * 8))
    lm = load(config, tensors(config))
    state = lm.state(1)
    state.set_sampling(0, GREEDY)
    columns: list[list[int]] = [[]]
    for call, heard in enumerate(codes(15)):
        step = lm.step(state, Rows([0]), heard[None])
        columns.append(state.grid.tokens[0, :9, (call + 1) % 5].tolist())
        assert bool(step.heard) == (call >= 3)
        if call >= 3:
            complete = call + 1 - 3
            expected = [columns[complete + config.delays[channel]][channel] for channel in range(9)]
            assert frame(step)[0].tolist() == expected


def test_the_user_s_first_frame_is_not_seen_and_the_second_is() -> None:
    def made(user: Tensor) -> Tensor:
        state = tiny().state(1)
        state.set_sampling(0, GREEDY)
        return listen(tiny(), state, 0, user)

    user = codes(12)
    first, second = user.clone(), user.clone()
    first[0] = (first[0] + 1) % TINY.card
    second[1] = (second[1] + 1) % TINY.card
    assert torch.equal(made(first), made(user))
    assert not torch.equal(made(second), made(user))


def test_token_minus_one_is_nothing() -> None:
    """A user who says nothing is one whose embeddings are zeros."""
    made = tensors(TINY)
    mute = made | {
        name: torch.zeros_like(tensor)
        for name, tensor in made.items()
        if name in {f"emb.{book}.weight" for book in range(8, 16)}
    }
    # The first column is of initial tokens, which this other model mutes as well.
    made |= {name: torch.cat((made[name][:-1], mute[name][-1:])) for name in mute if "emb" in name}
    heard = []
    for tables, user in ((made, torch.full((12, 8), -1)), (mute, codes(12)), (made, codes(12))):
        lm = load(TINY, tables)
        state = lm.state(1)
        state.set_sampling(0, GREEDY)
        heard.append(listen(lm, state, 0, user))
    assert torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[0], heard[2])


@pytest.mark.parametrize("shape", [(1, 8), (2, 9), (2,)])
def test_misshapen_user_codes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"user_codes must be \[2, 8\], not"):
        tiny().step(tiny().state(2), Rows([0, 1]), torch.zeros(shape, dtype=torch.int64))


def test_a_seed_is_a_session() -> None:
    def made(seed: int) -> Tensor:
        state = tiny().state(1)
        state.set_sampling(0, Sampling(seed=seed))
        return listen(tiny(), state, 0, codes(20))

    assert torch.equal(made(3), made(3))
    assert not torch.equal(made(3), made(4))


def test_nbytes() -> None:
    lm = tiny()
    assert lm.state(3).nbytes == 3 * lm.state(1).nbytes
    assert lm.state(1).nbytes == 2 * 6 * 2 * 16 * 4 + 17 * 3 * 8
