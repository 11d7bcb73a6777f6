"""How many sessions fit, against an engine that steps them."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.admission import ENOUGH_STEPS, FEW_STEPS, FORGET_AFTER_S, Admission, StepLog
from engine.api import Frame, OpenParams, Overloaded, Pcm
from engine.calibration import calibrate
from engine.capacity import MAX_SLOTS, PLANNED_SHARE, StepCurve, load_of, plan_slots
from engine.core import EngineCore
from engine.echo import FRAME_SIZE, EchoModel
from engine.model import Room, StepResult

FRAME_S = 0.08
PARAMS = OpenParams()
SILENCE = np.zeros(FRAME_SIZE, np.float32)
GPU = StepCurve({1: 0.0063, 64: 0.0224, 128: 0.0374})
STAIRS = StepCurve(
    {1: 0.006, 8: 0.006, 9: 0.01, 32: 0.01, 33: 0.022, 64: 0.022, 65: 0.036, 128: 0.036}
)
CPU = StepCurve({1: 0.02, 2: 0.032, 3: 0.044})


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
    [(GPU, 8), (GPU, 128), (GPU, 250), (STAIRS, 20), (STAIRS, 100), (CPU, 1), (CPU, 2), (CPU, 4)],
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
    plan = plan_slots(GPU, frame_s=FRAME_S, memory_slots=1000)
    fits, more = (load_of(GPU, n, FRAME_S) for n in (plan.slots, plan.slots + 1))
    assert fits is not None
    assert fits.latency_s <= PLANNED_SHARE * FRAME_S
    assert more is None or more.latency_s > PLANNED_SHARE * FRAME_S
    assert plan.reason.startswith(f"{plan.slots} sessions: memory allows 1000, step time ")


def test_memory_may_allow_less() -> None:
    plan = plan_slots(GPU, frame_s=FRAME_S, memory_slots=7)
    assert plan.slots == 7
    assert plan.reason.startswith("7 sessions: memory allows 7, step time ")


def test_prompts_of_callers_who_join_cost_sessions() -> None:
    without, beside = (
        plan_slots(GPU, frame_s=FRAME_S, memory_slots=1000, piece_s=piece_s).slots
        for piece_s in (0, 0.01)
    )
    assert beside < without


def test_one_session_is_served_even_where_it_will_fall_behind() -> None:
    plan = plan_slots(StepCurve({1: 5.0}), frame_s=FRAME_S, memory_slots=9)
    assert plan.slots == 1
    assert "step time 0" in plan.reason
    assert "will fall behind" in plan.reason
    tight = plan_slots(StepCurve({1: 0.07}), frame_s=FRAME_S, memory_slots=9)
    assert (tight.slots, "may be late" in tight.reason) == (1, True)


def test_no_plan_is_without_bounds() -> None:
    plan = plan_slots(StepCurve({1: 1e-6}), frame_s=FRAME_S, memory_slots=10**6)
    assert plan.slots == MAX_SLOTS


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
        assert self.old.issuperset(rows)
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


def test_calibration_ends_where_a_step_takes_longer_than_a_frame() -> None:
    slow = StepCurve({1: 0.02, 2: 0.033})
    model = AgedEcho(512, slow)
    calibrate(model, clock=model.clock)
    assert slow(max(model.stepped)) > FRAME_S
    assert max(model.stepped) < 12


def test_calibration_of_a_slow_model_is_short() -> None:
    model = AgedEcho(512, StepCurve({1: 5.0}))
    calibrate(model, clock=model.clock)
    assert model.stepped == [1, 1]


def test_a_session_too_many_is_refused_for_what_steps_take() -> None:
    model = TimedEcho(16, CPU)
    core = core_of(model, Admission(CPU, FRAME_S))
    open_all(core, 5)
    latencies(core, model.clock, 5, 0)
    with pytest.raises(Overloaded, match=r"with a session more than the 5 .* would"):
        core.open(5, PARAMS)
    stats = core.stats()
    assert (stats.live, stats.free) == (5, 11)
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
    core = core_of(model, Admission(calibrate(model, clock=model.clock).curve, FRAME_S))
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
    admission = Admission(StepCurve({1: 0.06, 2: 0.1, 3: 0.13}), FRAME_S)
    assert admission.refusal(1) is not None
    for _ in range(FEW_STEPS):
        assert admission.refusal(1) is not None
        admission.stepped(1, CPU(1), pause_s=0.7 * FRAME_S)
    assert admission.refusal(1) is None


def test_load_that_has_gone_is_forgotten_by_an_engine_with_pauses() -> None:
    admission = Admission(CPU, FRAME_S)
    for _ in range(300):
        admission.stepped(1, 5 * CPU(1))
    assert admission.refusal(1) is not None
    for _ in range(200):
        admission.stepped(1, 1.2 * CPU(1), pause_s=0.7 * FRAME_S)
    assert admission.refusal(1) is None


def test_load_from_before_a_long_time_without_callers_refuses_nobody() -> None:
    model = TimedEcho(16, StepCurve({rows: 5 * CPU(rows) for rows in (1, 2, 3)}))
    core = core_of(model, Admission(CPU, FRAME_S))
    open_all(core, 2)
    for seed in range(2):
        latencies(core, model.clock, 2, seed)
    for lease in range(2):
        core.close(lease)
    assert core.stats().latency_s == math.inf
    core.open(2, PARAMS)
    with pytest.raises(Overloaded):
        core.open(3, PARAMS)
    core.close(2)
    model.clock.now += FORGET_AFTER_S + 1
    stats = core.stats()
    assert stats.latency_s is not None
    assert stats.latency_s < FRAME_S
    for lease in (4, 5):
        core.open(lease, PARAMS)


def test_the_first_session_is_always_taken() -> None:
    slow = StepCurve({1: 1.0})
    admission = Admission(slow, FRAME_S)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(1, 1.0)
    assert admission.refusal(0) is None
    assert admission.refusal(1) is not None


def test_a_few_slow_steps_refuse_nobody() -> None:
    admission = Admission(CPU, FRAME_S)
    for count in range(300):
        admission.stepped(1, 5.0 if count % 3 == 0 else CPU(1))
    assert admission.slowdown == 1
    assert admission.refusal(1) is None


def test_nor_does_a_bad_start() -> None:
    admission = Admission(CPU, FRAME_S)
    for _ in range(ENOUGH_STEPS - 1):
        admission.stepped(1, 5.0)
    assert admission.refusal(1) is None
    admission.stepped(1, 5.0)
    assert admission.refusal(1) is not None


def test_steps_after_pauses_say_nothing_about_steps_under_load() -> None:
    admission = Admission(CPU, FRAME_S)
    for _ in range(300):
        admission.stepped(1, 5.0, pause_s=0.5 * FRAME_S)
    assert admission.slowdown == 1
    assert admission.refusal(1) is None
    for _ in range(ENOUGH_STEPS):
        admission.stepped(1, 5.0, pause_s=0.05 * FRAME_S)
    assert admission.slowdown == pytest.approx(5.0 / CPU(1))
    assert admission.refusal(1) is not None


def test_steps_that_are_slower_than_measured_at_the_start_count() -> None:
    admission = Admission(GPU, FRAME_S)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(40, 2 * GPU(40))
    assert admission.slowdown == pytest.approx(2)
    doubled = load_of(GPU, 100, FRAME_S, slowdown=2.0)
    assert doubled is not None
    assert admission.latency_s(100) == pytest.approx(doubled.latency_s)


def test_who_was_refused_comes_in_only_when_there_is_room_to_spare() -> None:
    admission = Admission(GPU, FRAME_S)
    for _ in range(ENOUGH_STEPS):
        admission.stepped(60, GPU(60))
    most = max(n for n in range(1, 400) if admission.latency_s(n) <= FRAME_S)
    assert admission.refusal(most - 1) is None
    assert "; 80 ms are allowed" in str(admission.refusal(most))
    assert "; 72 ms are allowed" in str(admission.refusal(most - 1))
    fewer = max(n for n in range(1, 400) if admission.latency_s(n) <= 0.9 * FRAME_S)
    assert fewer < most
    assert admission.refusal(fewer - 1) is None
    assert admission.refusal(most - 1) is None


def test_fast_models_refuse_nobody() -> None:
    fast = StepCurve({1: 0.0005, 64: 0.001})
    admission = Admission(fast, FRAME_S)
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
