"""How many sessions fit, against an engine that steps them."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.admission import ENOUGH_STEPS, FEW_STEPS, Admission, StepLog
from engine.api import Frame, OpenParams, Overloaded, Pcm
from engine.calibration import Calibration, calibrate, recalibration
from engine.capacity import MAX_SLOTS, PLANNED_SHARE, StepCurve, load_of, plan_slots
from engine.core import EngineCore
from engine.echo import FRAME_SIZE, EchoModel
from engine.model import Room, StepResult
from engine.recalibration import FIRST_S, LONGEST_S

FRAME_S = 0.08
PARAMS = OpenParams()
SILENCE = np.zeros(FRAME_SIZE, np.float32)
GPU = StepCurve({1: 0.0063, 64: 0.0224, 128: 0.0374})
STAIRS = StepCurve(
    {1: 0.006, 8: 0.006, 9: 0.01, 32: 0.01, 33: 0.022, 64: 0.022, 65: 0.036, 128: 0.036}
)
CPU = StepCurve({1: 0.02, 2: 0.032, 3: 0.044})
ALONE = StepCurve({1: 0.0145, 2: 0.029})
"""Rows that are stepped one after the other."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedEcho(EchoModel):
    """Echo that takes the time of a curve on a clock of its own."""

    def __init__(self, slots: int, curve: StepCurve, *, piece_s: float = 0.0) -> None:
        super().__init__(slots, slots_by_memory=True)
        self.curve = curve
        self.piece_s = piece_s
        self.clock = Clock()
        self.shared = Room()
        self.stepped: list[int] = []

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        for _ in range(3 if self.piece_s else 0):
            self.clock.now += self.piece_s
            yield

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        self.stepped.append(len(rows))
        self.clock.now += self.curve(len(rows))
        return super().step(rows, pcm)

    def room(self) -> Room:
        return self.shared


def core_of(model: TimedEcho, admission: Admission | None = None) -> EngineCore:
    return EngineCore(model, max_in_flight=100, admission=admission, clock=model.clock)


def admission_of(curve: StepCurve, slots: int = 1000, *, by_memory: bool = False) -> Admission:
    return Admission(Calibration(curve, curve, 0.0), FRAME_S, slots, by_memory=by_memory)


def open_all(core: EngineCore, sessions: int) -> None:
    for lease in range(sessions):
        core.open(lease, PARAMS)
        while core.busy:
            core.advance()


def latencies(core: EngineCore, clock: Clock, sessions: int, seed: int) -> list[float]:
    """Of paced callers at random phases, for five seconds, in order of length."""
    rng = random.Random(seed)
    coming = [(clock.now + rng.random() * FRAME_S, lease, 0) for lease in range(sessions)]
    heapq.heapify(coming)
    fed: dict[tuple[int, int], float] = {}
    found: list[float] = []
    while coming or core.ready:
        if not core.ready:
            clock.now = max(clock.now, coming[0][0])
        while coming and coming[0][0] <= clock.now:
            arrived, lease, index = heapq.heappop(coming)
            core.feed([Frame(lease, 0, index, SILENCE)])
            fed[lease, index] = arrived
            if index < 62:
                heapq.heappush(coming, (arrived + FRAME_S, lease, index + 1))
        found += [clock.now - fed[o.lease, o.index] for o in core.step()]
    return sorted(found)


@pytest.mark.parametrize(
    ("curve", "sessions"),
    [
        (GPU, 8),
        (GPU, 128),
        (GPU, 250),
        (STAIRS, 20),
        (STAIRS, 100),
        (CPU, 1),
        (CPU, 2),
        (CPU, 4),
        (ALONE, 3),
    ],
)
def test_frames_are_as_late_as_predicted_and_no_later(curve: StepCurve, sessions: int) -> None:
    load = load_of(curve, sessions, FRAME_S)
    assert load is not None
    worst = 0.0
    for seed in range(2):
        model = TimedEcho(sessions, curve)
        core = core_of(model)
        open_all(core, sessions)
        found = latencies(core, model.clock, sessions, seed)
        late = found[int(0.99 * len(found))]
        worst = max(worst, late)
        assert late <= 1.1 * load.latency_s
    assert worst > 0.4 * load.latency_s


def test_an_engine_that_would_fall_behind_does() -> None:
    sessions = 320
    assert load_of(GPU, sessions, FRAME_S) is None
    model = TimedEcho(sessions, GPU)
    core = core_of(model)
    open_all(core, sessions)
    assert latencies(core, model.clock, sessions, 0)[-1] > FRAME_S


points = st.dictionaries(st.integers(1, 200), st.floats(1e-5, 0.3), min_size=1, max_size=6)


@given(points, st.integers(1, 300), st.floats(0, 0.05))
def test_where_it_settles_a_turn_brings_as_many_frames_as_it_steps(
    measured: dict[int, float], sessions: int, piece_s: float
) -> None:
    curve = StepCurve(measured)
    load = load_of(curve, sessions, FRAME_S, piece_s=piece_s)
    if curve(sessions) + piece_s > FRAME_S:
        assert load is None
        return
    assert load is not None
    assert 1 <= load.rows <= sessions
    assert load.step_s == curve(load.rows)
    # The frames of such a turn, and no more than of one in which all come.
    assert sessions * (curve(1) + piece_s) / FRAME_S <= max(load.rows, 1.0) * (1 + 1e-9)
    assert load.latency_s <= 2 * (curve(sessions) + piece_s)


@given(points, st.floats(0, 0.03))
@example({1: 0.005, 3: 0.0096, 8: 0.0226, 17: 0.0236, 32: 0.0402, 33: 0.0528, 96: 0.0656}, 0.01)
def test_nobody_is_sooner_for_one_caller_more(measured: dict[int, float], piece_s: float) -> None:
    curve = StepCurve(measured)
    loads = [load_of(curve, sessions, FRAME_S, piece_s=piece_s) for sessions in range(1, 100)]
    found = [math.inf if load is None else load.latency_s for load in loads]
    assert all(less <= more * (1 + 1e-9) for less, more in pairwise(found))


@given(points)
def test_a_curve_never_falls(measured: dict[int, float]) -> None:
    curve = StepCurve(measured)
    seconds = [curve(rows) for rows in range(1, 400)]
    assert seconds == sorted(seconds)
    assert all(curve(rows) >= found for rows, found in measured.items())


@pytest.mark.parametrize("bad", [{}, {0: 0.1}, {1: 0.0}, {1: float("nan")}])
def test_a_curve_of_nothing_is_refused(bad: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no step times"):
        StepCurve(bad)


def test_the_plan_is_the_largest_number_in_time() -> None:
    plan = plan_slots(GPU, frame_s=FRAME_S, most=1000)
    fits, more = (load_of(GPU, n, FRAME_S) for n in (plan.slots, plan.slots + 1))
    assert fits is not None
    assert fits.latency_s <= PLANNED_SHARE * FRAME_S
    assert more is None or more.latency_s > PLANNED_SHARE * FRAME_S
    assert plan.reason.startswith(f"{plan.slots} sessions: memory allows 1000, step time ")


def test_callers_who_are_in_one_step_are_not_in_the_next_as_well() -> None:
    for sessions in (2, 3, 4):
        load = load_of(ALONE, sessions, FRAME_S, piece_s=0.01)
        assert load is not None
        assert load.latency_s == pytest.approx(0.01 + sessions * ALONE(1))
    assert plan_slots(ALONE, frame_s=FRAME_S, most=64, piece_s=0.01).slots == 3


def test_memory_may_allow_less() -> None:
    plan = plan_slots(GPU, frame_s=FRAME_S, most=7)
    assert plan.slots == 7
    assert plan.reason.startswith("7 sessions: memory allows 7, step time ")


def test_prompts_of_callers_who_join_cost_sessions() -> None:
    without, beside = (
        plan_slots(GPU, frame_s=FRAME_S, most=1000, piece_s=piece_s).slots for piece_s in (0, 0.01)
    )
    assert beside < without


def test_one_session_is_served_even_where_it_will_fall_behind() -> None:
    plan = plan_slots(StepCurve({1: 5.0}), frame_s=FRAME_S, most=9)
    assert plan.slots == 1
    assert "step time 0" in plan.reason
    assert "will fall behind" in plan.reason
    tight = plan_slots(StepCurve({1: 0.07}), frame_s=FRAME_S, most=9)
    assert (tight.slots, "may be late" in tight.reason) == (1, True)


def test_no_plan_is_without_bounds() -> None:
    plan = plan_slots(StepCurve({1: 1e-6}), frame_s=FRAME_S, most=10**6)
    assert plan.slots == MAX_SLOTS


YOUNG = 0.6
"""Of the time of steps of old rows."""


class AgedEcho(TimedEcho):
    """Echo whose rows are slow when they are old, and which counts how it is left."""

    def __init__(self, slots: int, curve: StepCurve) -> None:
        super().__init__(slots, curve, piece_s=0.002)
        self.old: set[int] = set()
        self.used: set[int] = set()

    def age(self, row: int, frames: int) -> None:
        assert frames == self.spec.context
        self.old.add(row)

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        self.used.update(rows)
        assert self.old.issuperset(rows) or self.old.isdisjoint(rows)
        self.clock.now -= 0.0 if self.old else (1 - YOUNG) * self.curve(len(rows))
        return super().step(rows, pcm)

    def reset(self, rows: Sequence[int]) -> None:
        self.old.difference_update(rows)
        self.used.difference_update(rows)
        super().reset(rows)


def test_calibration_measures_old_rows_and_leaves_new_ones() -> None:
    model = AgedEcho(128, GPU)
    found = calibrate(model, clock=model.clock)
    for rows in (1, 2, 50, 64, 65, 128):
        assert found.curve(rows) == pytest.approx(GPU(rows))
    assert found.piece_s == pytest.approx(0.002)
    assert (model.old, model.used) == (set(), set())
    assert found.young(50) == pytest.approx(YOUNG * GPU(50))


def test_calibration_ends_where_a_step_takes_longer_than_a_frame() -> None:
    slow = StepCurve({1: 0.02, 2: 0.033})
    model = AgedEcho(512, slow)
    calibrate(model, clock=model.clock)
    assert slow(max(model.stepped)) > FRAME_S
    assert max(model.stepped) < 12


def test_calibration_of_a_slow_model_is_short() -> None:
    model = AgedEcho(512, StepCurve({1: 5.0}))
    calibrate(model, clock=model.clock)
    assert model.stepped == [1, 1]  # no need to know what new rows take


def test_a_session_too_many_is_refused_for_what_steps_take() -> None:
    model = TimedEcho(16, CPU)
    core = core_of(model, admission_of(CPU, 16))
    open_all(core, 5)
    latencies(core, model.clock, 5, 0)
    with pytest.raises(Overloaded, match=r"with a session more than the 5 .* would"):
        core.open(5, PARAMS)
    stats = core.stats()
    assert (stats.live, stats.slots, stats.free) == (5, 5, 0)
    assert stats.latency_s is not None
    assert stats.latency_s > FRAME_S
    assert 0 < stats.utilisation <= 1
    assert stats.step_seconds == pytest.approx(sum(map(CPU, model.stepped)))
    for lease in range(4):
        core.close(lease)
    assert core.open(5, PARAMS).slot == 5


@pytest.mark.parametrize("slowdown", [1.0, 1.5, 3.0, 5.0])
def test_who_comes_at_once_is_judged_by_what_was_measured_at_the_start(slowdown: float) -> None:
    loaded = StepCurve({rows: slowdown * CPU(rows) for rows in (1, 2, 3)})
    model = TimedEcho(16, loaded)
    core = core_of(model, Admission(calibrate(model, clock=model.clock), FRAME_S, 16))
    taken = 0
    with suppress(Overloaded):
        while True:
            core.open(taken, PARAMS)
            taken += 1
    while core.busy:
        core.advance()
    found = latencies(core, model.clock, taken, 0)
    assert taken == 1 or found[int(0.99 * len(found))] <= FRAME_S
    more = load_of(loaded, taken + 1, FRAME_S)
    assert more is None or more.latency_s > FRAME_S


def test_a_start_that_was_disturbed_is_made_up_for_by_a_few_steps() -> None:
    admission = admission_of(StepCurve({1: 0.06, 2: 0.1, 3: 0.13}))
    assert admission.refusal(1) is not None
    for _ in range(FEW_STEPS):
        assert admission.refusal(1) is not None
        admission.stepped(1, CPU(1), pause_s=0.7 * FRAME_S)
    assert admission.refusal(1) is None


def test_load_that_has_gone_is_forgotten_by_an_engine_with_pauses() -> None:
    admission = admission_of(CPU)
    for _ in range(300):
        admission.stepped(1, 5 * CPU(1))
    assert admission.refusal(1) is not None
    for _ in range(200):
        admission.stepped(1, 1.2 * CPU(1), pause_s=0.7 * FRAME_S)
    assert admission.refusal(1) is None


def left_alone(core: EngineCore, clock: Clock) -> float:
    """Goes on with an engine that nobody asks for anything until it has measured its steps again.
    Returns the seconds before it began to.
    """
    while core.busy:
        core.advance()
    wait_s = core.idle_s
    assert wait_s is not None
    clock.now += wait_s
    while core.busy:
        core.advance()
    return wait_s


def auto(model: TimedEcho) -> EngineCore:
    """An engine whose number of sessions nobody has said."""
    measured = calibrate(model, clock=model.clock)
    admission = Admission(measured, FRAME_S, model.spec.slots, by_memory=True)
    return core_of(model, admission)


def slower(curve: StepCurve, times: float) -> StepCurve:
    return StepCurve({rows: times * seconds for rows, seconds in curve.points.items()})


def test_load_from_before_a_pause_refuses_nobody() -> None:
    model = TimedEcho(16, slower(CPU, 5))
    core = core_of(model, admission_of(CPU, 16))
    open_all(core, 2)
    for seed in range(2):
        latencies(core, model.clock, 2, seed)
    for lease in range(2):
        core.close(lease)
    assert (core.stats().latency_s, core.stats().slots) == (math.inf, 1)
    core.open(2, PARAMS)
    with pytest.raises(Overloaded):
        core.open(3, PARAMS)
    core.close(2)
    model.curve = CPU
    left_alone(core, model.clock)
    assert core.stats().latency_s < FRAME_S  # type: ignore[operator]
    for lease in (4, 5):
        core.open(lease, PARAMS)


QUIET = slower(CPU, 0.97)


def test_a_number_from_a_busy_start_is_right_once_nobody_is_there() -> None:
    usual = auto(TimedEcho(16, QUIET)).spec.slots
    model = TimedEcho(16, slower(QUIET, 2))
    core = auto(model)
    few = core.spec.slots
    assert (few, core.stats().slots, core.stats().free) == (1, 1, 1)
    assert core.spec.capacity.startswith("1 session: memory allows 16")
    left_alone(core, model.clock)
    assert core.spec.slots == few
    model.curve = QUIET
    left_alone(core, model.clock)
    assert core.spec.slots == core.stats().slots == usual > few
    assert core.spec.capacity.startswith(f"{usual} sessions: memory allows 16")
    model.curve = slower(QUIET, 2)
    left_alone(core, model.clock)
    assert few <= core.spec.slots < usual
    assert core.stats().steps == 0


def test_a_number_from_a_busy_start_rises_while_somebody_talks() -> None:
    usual = auto(TimedEcho(16, QUIET)).spec.slots
    model = TimedEcho(16, slower(QUIET, 2))
    core = auto(model)
    open_all(core, 1)
    with pytest.raises(Overloaded, match="with a session more than the 1 there are"):
        core.open(1, PARAMS)
    model.curve = QUIET
    latencies(core, model.clock, 1, 0)
    assert core.stats().slots == core.spec.slots == usual
    assert core.open(2, PARAMS).slot == 1


def test_a_number_falls_while_callers_would_be_late_and_nobody_has_to_go() -> None:
    model = TimedEcho(16, QUIET)
    core = auto(model)
    usual = core.spec.slots
    open_all(core, usual)
    model.curve = slower(QUIET, 1.6)
    latencies(core, model.clock, usual, 0)
    stats = core.stats()
    assert (stats.live, stats.free) == (usual, 0)
    assert core.spec.slots == stats.slots < usual
    core.close(0)
    with pytest.raises(Overloaded):
        core.open(usual, PARAMS)
    model.curve = QUIET
    for seed in range(5):
        with suppress(Overloaded):
            latencies(core, model.clock, usual, seed)
    assert core.stats().slots == usual


@given(st.lists(st.floats(0.98, 1.2), min_size=60, max_size=60))
def test_a_number_doesnt_swing_with_small_disturbances(ratios: list[float]) -> None:
    admission = admission_of(CPU, 16, by_memory=True)
    usual = admission.plan.slots
    for ratio in ratios:
        for _ in range(ENOUGH_STEPS):
            admission.stepped(2, ratio * CPU(2))
        assert admission.plan.slots == usual


def test_callers_who_are_new_prove_no_room_for_more() -> None:
    old, young = CPU, slower(CPU, YOUNG)
    admission = Admission(Calibration(old, young, 0.0), FRAME_S, 16, by_memory=True)
    usual = admission.plan.slots
    for step in range(1000):
        age = step / 999
        admission.stepped(2, young(2) + age * (old(2) - young(2)), age=age)
        assert admission.plan.slots == usual
    assert admission.slowdown == pytest.approx(1)


def test_the_engine_knows_how_much_of_its_time_a_caller_has_been_there() -> None:
    class Remembering(TimedEcho):
        spec = replace(EchoModel(16, slots_by_memory=True).spec, context=50)

    ages: list[float] = []

    class Watched(Admission):
        def stepped(
            self, rows: int, seconds: float, pause_s: float = 0.0, age: float = 1.0
        ) -> None:
            ages.append(age)
            super().stepped(rows, seconds, pause_s, age)

    model = Remembering(16, CPU)
    core = core_of(model, Watched(Calibration(CPU, CPU, 0.0), FRAME_S, 16))
    open_all(core, 1)
    latencies(core, model.clock, 1, 0)
    assert ages == [min(step, 50) / 50 for step in range(63)]


def test_steps_are_not_measured_while_somebody_is_there() -> None:
    model = TimedEcho(16, QUIET)
    core = auto(model)
    open_all(core, 1)
    model.clock.now += 2 * FIRST_S
    steps = len(model.stepped)
    core.feed([Frame(0, 0, index, SILENCE) for index in range(3)])
    assert core.idle_s == 0
    while core.busy:
        core.step()
        core.advance()
    core.advance()
    assert core.idle_s is None
    assert len(model.stepped) == steps + 3


def test_a_caller_who_comes_while_steps_are_measured_finds_the_rows_as_new() -> None:
    model = AgedEcho(16, CPU)
    core = auto(model)
    model.clock.now += FIRST_S
    while 3 not in model.used:
        assert core.busy
        core.advance()
    steps = len(model.stepped)
    core.open(0, PARAMS)
    assert (model.old, model.used) == (set(), set())
    while core.busy:
        core.advance()
    assert (len(model.stepped), core.idle_s) == (steps, None)
    core.close(0)
    core.advance()
    assert core.idle_s == FIRST_S


def test_an_engine_nobody_wants_is_measured_ever_more_rarely() -> None:
    model = TimedEcho(16, CPU)
    core = auto(model)
    waits = [left_alone(core, model.clock) for _ in range(10)]
    assert waits == pytest.approx([min(FIRST_S * 2**n, LONGEST_S) for n in range(10)])


def test_a_repeated_calibration_leaves_the_memory_of_prompts_and_knows_what_it_leaves_out() -> None:
    model = AgedEcho(128, slower(GPU, 2))
    first = calibrate(model, clock=model.clock)
    model.curve = GPU
    model.stepped.clear()
    pieces = recalibration(model, first, clock=model.clock)
    found: list[Calibration] = []

    def keep() -> Iterator[None]:
        found.append((yield from pieces))

    most_old = max(len(model.old) for _ in keep())
    again = found[0]
    assert max(model.stepped) == most_old == 96
    for rows in (1, 50, 128):
        assert again.curve(rows) == pytest.approx(GPU(rows))
        assert again.young(rows) == pytest.approx(YOUNG * GPU(rows))
    assert again.piece_s == pytest.approx(first.piece_s / 2)


def test_the_first_session_is_always_taken() -> None:
    slow = StepCurve({1: 1.0})
    admission = admission_of(slow)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(1, 1.0)
    assert admission.refusal(0) is None
    assert admission.refusal(1) is not None


def test_a_few_slow_steps_refuse_nobody() -> None:
    admission = admission_of(CPU)
    for count in range(300):
        admission.stepped(1, 5.0 if count % 3 == 0 else CPU(1))
    assert admission.slowdown == 1
    assert admission.refusal(1) is None


def test_nor_does_a_bad_start() -> None:
    admission = admission_of(CPU)
    for _ in range(ENOUGH_STEPS - 1):
        admission.stepped(1, 5.0)
    assert admission.refusal(1) is None
    admission.stepped(1, 5.0)
    assert admission.refusal(1) is not None


def test_steps_after_pauses_say_nothing_about_steps_under_load() -> None:
    admission = admission_of(CPU)
    for _ in range(300):
        admission.stepped(1, 5.0, pause_s=0.5 * FRAME_S)
    assert admission.slowdown == 1
    assert admission.refusal(1) is None
    for _ in range(ENOUGH_STEPS):
        admission.stepped(1, 5.0, pause_s=0.05 * FRAME_S)
    assert admission.slowdown == pytest.approx(5.0 / CPU(1))
    assert admission.refusal(1) is not None


def test_steps_that_are_slower_than_measured_at_the_start_count() -> None:
    admission = admission_of(GPU)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(40, 2 * GPU(40))
    assert admission.slowdown == pytest.approx(2)
    doubled = load_of(GPU, 100, FRAME_S, slowdown=2.0)
    assert doubled is not None
    assert admission.latency_s(100) == pytest.approx(doubled.latency_s)


def test_who_was_refused_comes_in_only_when_there_is_room_to_spare() -> None:
    admission = admission_of(GPU)
    assert admission.plan.reason.startswith(f"{admission.plan.slots} sessions: max_sessions 1000")
    most = max(n for n in range(1, 400) if admission.latency_s(n) <= FRAME_S)
    assert admission.plan.slots == most
    assert admission.refusal(most - 1) is None
    assert "; 72 ms are allowed" in str(admission.refusal(most))
    for slowdown in (1.05, 1.0):
        for _ in range(300):
            admission.stepped(60, slowdown * GPU(60))
    fewer = admission.plan.slots
    assert fewer < most
    assert admission.latency_s(fewer + 1) < FRAME_S
    assert admission.refusal(fewer) is not None
    spare = max(n for n in range(1, 400) if admission.latency_s(n) <= 0.9 * FRAME_S)
    assert fewer >= spare
    for _ in range(300):
        admission.stepped(60, 0.9 * GPU(60))
    assert admission.plan.slots > fewer


def test_fast_models_refuse_nobody() -> None:
    fast = StepCurve({1: 0.0005, 64: 0.001})
    admission = admission_of(fast)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(1, 10 * fast(1))
    assert all(admission.refusal(sessions) is None for sessions in range(64))


def test_a_model_without_memory_for_one_more_refuses_it() -> None:
    model = TimedEcho(4, CPU)
    core = core_of(model)
    core.open(0, PARAMS)
    model.shared = Room(enough=False, pages=100, free_pages=3)
    with pytest.raises(Overloaded, match="3 of 100 pages"):
        core.open(1, PARAMS)
    assert (core.stats().pages, core.stats().free_pages, core.stats().free) == (100, 3, 3)


def test_rows_that_have_ended_are_made_new_before_a_session_is_refused() -> None:
    class Paged(TimedEcho):
        def reset(self, rows: Sequence[int]) -> None:
            super().reset(rows)
            self.shared = Room(pages=1, free_pages=1)

    model = Paged(4, CPU)
    core = core_of(model)
    core.open(0, PARAMS)
    model.shared = Room(enough=False, pages=1)
    core.close(0)
    assert core.open(1, PARAMS).slot in (0, 1)


def test_utilisation_is_the_part_of_the_time_in_steps() -> None:
    clock = Clock()
    log = StepLog(clock)
    assert log.utilisation == 0
    for start in (0.0, 1.0, 2.0):
        log.add(start, 0.25)
    clock.now = 3.0
    assert log.utilisation == pytest.approx(0.25)
    clock.now = 300.0
    assert log.utilisation < 0.01
    assert log.seconds == 0.75
