from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.api import BadParams, EngineError, Frame, Lease, NoFreeSlot, OpenParams, Pcm
from engine.core import EngineCore, PrefillFailed, check_frames
from engine.echo import FRAME_SIZE, EchoModel, EchoVideoModel
from engine.model import StepResult
from tests.pictures import encoded

PARAMS = OpenParams()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class WatchedEcho(EchoModel):
    """Echo that keeps a log of what was asked, prefills in pieces and fails on demand."""

    def __init__(self, slots: int, *, pieces: int = 0, clock: Clock | None = None) -> None:
        super().__init__(slots)
        self.pieces = pieces
        self.clock = clock
        self.log: list[tuple[str, tuple[int, ...]]] = []
        self.prefill_error: Exception | None = None
        self.step_error: Exception | None = None

    def check(self, params: OpenParams) -> None:
        if params.voice == "bad":
            raise BadParams("voice", "no voice 'bad'")

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        for _ in range(self.pieces):
            self.log.append(("prefill", (row,)))
            yield
        if self.prefill_error is not None:
            raise self.prefill_error

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        self.log.append(("step", tuple(rows)))
        if self.step_error is not None:
            raise self.step_error
        if self.clock is not None:
            self.clock.now += 0.5
        return super().step(rows, pcm)

    def reset(self, rows: Sequence[int]) -> None:
        self.log.append(("reset", tuple(rows)))
        super().reset(rows)


def frame(lease: int, index: int = 0, epoch: int = 0) -> Frame:
    return Frame(lease, epoch, index, np.full(FRAME_SIZE, lease + index / 100, np.float32))


def go_live(core: EngineCore, lease: int) -> Lease:
    opened = core.open(lease, PARAMS)
    while core.advance() != opened:
        pass
    return opened


def idle(core: EngineCore) -> None:
    while core.busy:
        core.step()
        core.advance()


def test_spec_joins_model_and_engine() -> None:
    core = EngineCore(EchoModel(8, 2), 4, max_in_flight=7, step_mode="fixed")
    spec = core.spec
    assert (spec.model, spec.slots, spec.startup_frames) == ("echo", 4, 2)
    assert (spec.max_in_flight, spec.step_mode) == (7, "fixed")
    assert EngineCore(EchoModel(8)).spec.slots == 8


@pytest.mark.parametrize("slots", [0, 9])
def test_refuses_slots_that_the_model_has_not(slots: int) -> None:
    with pytest.raises(ValueError, match="slots"):
        EngineCore(EchoModel(8), slots)


def test_refuses_no_frame_in_flight() -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        EngineCore(EchoModel(8), max_in_flight=0)


def test_open_is_live_when_prefill_ends() -> None:
    core = EngineCore(WatchedEcho(2, pieces=2))
    lease = core.open(5, PARAMS)
    assert lease == Lease(5, 0)
    assert core.stats().prefill == 1
    assert [core.advance(), core.advance(), core.advance()] == [None, None, lease]
    assert core.stats().live == 1
    assert not core.busy


def test_open_refuses_bad_params_and_a_full_house() -> None:
    core = EngineCore(WatchedEcho(1))
    with pytest.raises(BadParams, match="bad"):
        core.open(1, OpenParams(voice="bad"))
    assert core.stats().free == 1
    go_live(core, 2)
    with pytest.raises(NoFreeSlot):
        core.open(3, PARAMS)


def test_prefills_take_turns() -> None:
    model = WatchedEcho(3, pieces=2)
    core = EngineCore(model)
    for lease in range(3):
        core.open(lease, PARAMS)
    live = [core.advance() for _ in range(9)]
    assert [row for _, (row,) in model.log] == [0, 1, 2, 0, 1, 2]
    assert live[-3:] == [Lease(0, 0), Lease(1, 1), Lease(2, 2)]


def test_a_failed_prefill_fails_its_open_only() -> None:
    model = WatchedEcho(2, pieces=1)
    core = EngineCore(model)
    go_live(core, 0)
    model.prefill_error = RuntimeError("no memory")
    core.open(1, PARAMS)
    core.advance()
    failed = core.advance()
    assert isinstance(failed, PrefillFailed)
    assert (failed.lease, str(failed.error)) == (1, "no memory")
    idle(core)
    assert model.log[-1] == ("reset", (1,))
    assert (core.stats().live, core.stats().free) == (1, 1)
    core.feed([frame(0)])
    assert len(core.step()) == 1


def test_ready_rows_form_one_batch_in_slot_order() -> None:
    model = WatchedEcho(3)
    core = EngineCore(model)
    for lease in range(3):
        go_live(core, lease)
    core.feed([frame(2, 0), frame(0, 0), frame(0, 1)])
    outputs = core.step()
    assert [(o.lease, o.index) for o in outputs] == [(0, 0), (2, 0)]
    assert [(o.lease, o.index) for o in core.step()] == [(0, 1)]
    assert core.step() == []
    assert model.log == [("step", (0, 2)), ("step", (0,))]


def test_an_output_carries_its_frame_and_times() -> None:
    clock = Clock()
    core = EngineCore(WatchedEcho(1, clock=clock), clock=clock)
    go_live(core, 3)
    clock.now = 10.0
    core.feed([frame(3, index=6, epoch=2)], arrived=9.25)
    (output,) = core.step()
    assert (output.lease, output.epoch, output.index) == (3, 2, 6)
    assert output.wait_s == 0.75
    assert (output.timings.step_s, output.timings.rows) == (0.5, 1)
    assert output.pcm is not None
    assert np.array_equal(output.pcm, frame(3, 6).pcm)


def test_startup_outputs_have_no_audio() -> None:
    core = EngineCore(EchoModel(1, delay_frames=2))
    go_live(core, 0)
    core.feed([frame(0, i) for i in range(3)])
    assert [core.step()[0].pcm is None for _ in range(3)] == [True, True, False]


def test_close_drops_waiting_frames_and_resets_before_free() -> None:
    model = WatchedEcho(1)
    core = EngineCore(model)
    go_live(core, 0)
    core.feed([frame(0, 0), frame(0, 1)])
    core.close(0)
    core.close(0)
    assert (core.stats().draining, core.stats().queued_frames) == (1, 0)
    assert core.step() == []
    core.advance()
    assert model.log == [("reset", (0,))]
    assert core.stats().free == 1
    assert not core.busy


def test_a_full_house_recycles_at_once_for_an_open() -> None:
    model = WatchedEcho(1)
    core = EngineCore(model)
    go_live(core, 0)
    core.close(0)
    assert core.open(1, PARAMS).slot == 0
    assert model.log == [("reset", (0,))]


def test_close_while_prefilling() -> None:
    model = WatchedEcho(2, pieces=5)
    core = EngineCore(model)
    core.open(0, PARAMS)
    kept = core.open(1, PARAMS)
    core.advance()
    core.close(0)
    live = [lease for _ in range(8) if (lease := core.advance())]
    assert live == [kept]
    assert ("reset", (0,)) in model.log
    assert (core.stats().free, core.stats().live) == (1, 1)


def test_a_surplus_frame_ends_its_lease_only() -> None:
    core = EngineCore(EchoModel(2), max_in_flight=2)
    go_live(core, 0)
    go_live(core, 1)
    core.feed([frame(0, 0), frame(0, 1), frame(0, 2), frame(0, 3), frame(1, 0)])
    good, failed = core.step()
    assert (good.lease, good.error) == (1, "")
    assert (failed.lease, failed.index, failed.pcm) == (0, 2, None)
    assert "more than 2 frames" in failed.error
    idle(core)
    stats = core.stats()
    assert (stats.live, stats.free, stats.stale_frames) == (1, 1, 1)


def test_stale_frames_are_counted() -> None:
    core = EngineCore(EchoModel(1))
    go_live(core, 0)
    core.close(0)
    core.feed([frame(0), frame(77)])
    assert core.step() == []
    assert core.stats().stale_frames == 2


def test_a_failed_step_is_the_engines_failure() -> None:
    model = WatchedEcho(1)
    core = EngineCore(model)
    go_live(core, 0)
    core.feed([frame(0)])
    model.step_error = RuntimeError("device lost")
    with pytest.raises(RuntimeError, match="device lost"):
        core.step()


def test_images_go_with_their_frame_and_bad_ones_end_their_lease_only() -> None:
    core = EngineCore(EchoVideoModel(2))
    assert core.spec.video
    good, bad = go_live(core, 1), go_live(core, 2)
    red, blue = ((encoded(name),) for name in ("red", "blue"))
    core.feed([replace(frame(1), video=red), replace(frame(1, 1), video=blue), frame(2)])
    core.feed([replace(frame(2, 1), video=(b"no image",)), frame(2, 2)])
    assert [output.text for output in core.step()] == [" I see red.", ""]
    seen, failed = core.step()
    assert (seen.lease, seen.text) == (good.id, " I see blue.")
    assert (failed.lease, failed.index, failed.pcm) == (bad.id, 1, None)
    assert failed.error.startswith("an image can't be seen: ValueError: neither JPEG nor PNG")
    assert not core.step()
    idle(core)
    assert core.stats().free == 1


def test_two_hundred_sessions_on_two_slots() -> None:
    core = EngineCore(EchoModel(2, delay_frames=1))
    for lease in range(200):
        go_live(core, lease)
        core.feed([frame(lease, 0), frame(lease, 1)])
        first, second = core.step()[0], core.step()[0]
        assert first.pcm is None
        assert second.pcm is not None
        assert np.array_equal(second.pcm, frame(lease, 0).pcm)
        core.close(lease)
    idle(core)
    stats = core.stats()
    assert (stats.free, stats.steps, stats.frames, stats.stale_frames) == (2, 400, 400, 0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "advance", "feed", "feed", "feed", "step", "close", "stale"]),
        st.integers(0, 5),
    ),
    max_size=100,
).map(lambda actions: [("open", 0), ("advance", 0), ("advance", 0), *actions])


@given(ACTIONS)
def test_every_frame_gives_exactly_one_output(actions: list[tuple[str, int]]) -> None:
    """Any schedule: live leases get all their frames back, in order; slots never leak."""
    core = EngineCore(WatchedEcho(3, pieces=1), max_in_flight=3)
    given_leases: list[int] = []
    live: set[int] = set()
    fed: dict[int, list[int]] = {}
    got: dict[int, list[int]] = {}
    surplus: set[int] = set()
    failed: set[int] = set()
    stale = 0

    def step() -> None:
        outputs = core.step()
        assert len({output.lease for output in outputs}) == len(outputs)
        for output in outputs:
            if output.error:
                failed.add(output.lease)
            else:
                got[output.lease].append(output.index)

    def advance() -> None:
        if isinstance(lease := core.advance(), Lease):
            live.add(lease.id)
            fed[lease.id], got[lease.id] = [], []

    for action, which in actions:
        match action:
            case "open":
                try:
                    given_leases.append(core.open(len(given_leases), PARAMS).id)
                except NoFreeSlot:
                    stats = core.stats()
                    assert (stats.free, stats.draining) == (0, 0)
                    given_leases.append(-1)
            case "close":
                lease = given_leases[-1 - which % len(given_leases)]
                core.close(lease)
                live.discard(lease)
            case "feed" if live:
                lease = sorted(live)[which % len(live)]
                index = len(fed[lease])
                core.feed([frame(lease, index)])
                if index - len(got[lease]) >= 3:
                    live.discard(lease)
                    surplus.add(lease)
                else:
                    fed[lease].append(index)
            case "stale" if which not in live:
                core.feed([frame(which)])
                stale += 1
            case "step":
                step()
            case "advance":
                advance()
        stats = core.stats()
        assert stats.free + stats.prefill + stats.live + stats.draining == 3
        assert stats.stale_frames == stale
        assert stats.live == len(live)

    while core.busy:
        step()
        advance()
    for lease, indices in got.items():
        if lease in live:
            assert indices == fed[lease]
        else:
            assert indices == fed[lease][: len(indices)]
    assert failed == surplus
    assert core.stats().free == 3 - len(live)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Frame(4, 0, 2, np.zeros(5, np.float32)), r"lease 4, frame 2: pcm is float32 \[5\]"),
        (Frame(4, 0, 2, np.zeros(FRAME_SIZE, np.int16)), "pcm is int16"),
        (Frame(4, 0, 2, np.zeros(FRAME_SIZE, np.float32), (b"jpeg",)), "video"),
    ],
)
def test_frames_are_checked_at_the_seam(bad: Frame, words: str) -> None:
    spec = EngineCore(EchoModel(1)).spec
    check_frames([frame(0)], spec)
    with pytest.raises(EngineError, match=words):
        check_frames([frame(0), bad], spec)
