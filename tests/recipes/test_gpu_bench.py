"""The GPU benchmark's callers and pages, and all of it once on a tiny model."""

import itertools
import weakref

import numpy as np
import pytest
import torch

from engine.api import OpenParams
from engine.core import EngineCore
from engine.echo import EchoModel
from engine.serve import serve
from recipes.bench.gpu.__main__ import main
from recipes.bench.gpu.callers import BusyCallers, PacedCallers, Visit
from recipes.bench.gpu.fixed import identity
from recipes.bench.gpu.models import real_model, with_model
from recipes.bench.gpu.report import page, plot
from recipes.bench.gpu.results import Case, Machine, Measured, read_run
from recipes.plot import ticks


class Timed(EchoModel):
    """Steps and pieces of prefill take time on a clock of their own."""

    def __init__(self, slots, step_s, piece_s=0.005):
        super().__init__(slots)
        self.now = 100.0
        self.step_s, self.piece_s = step_s, piece_s

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def check(self, params):
        pass

    def prefill(self, row, params):
        for _ in range(2):
            self.now += self.piece_s
            yield

    def step(self, rows, pcm):
        self.now += self.step_s
        return super().step(rows, pcm)


def paced(model, callers, seconds, visits=()):
    core = EngineCore(model, clock=model.clock)
    they = PacedCallers(
        callers,
        np.ones((3, 1920), np.float32),
        frame_s=0.08,
        seconds=seconds,
        visits=iter(visits),
        visit_every_s=0.5,
        on_live=lambda row: None,
        clock=model.clock,
        sleep=model.sleep,
    )
    serve(core, they)
    return they


def test_a_frame_s_latency_runs_from_its_own_moment():
    they = paced(Timed(4, step_s=0.01), callers=4, seconds=4)
    figures = they.figures()
    assert abs(figures["frames"] - 4 * 4 / 0.08) <= 8
    # Its own step, after the one that it just missed.
    assert min(they.latencies) >= 10
    assert 10 < figures["max_ms"] < 20.001
    assert figures["late_pct"] == figures["dropped"] == 0
    assert figures["busy_pct"] == pytest.approx(10 * len(they.steps) / 40, rel=0.05)


def test_visitors_take_places_or_leave_again():
    stays = (Visit(OpenParams(), f"stay{k % 2}", stays=k % 2 == 0) for k in itertools.count())
    they = paced(Timed(5, step_s=0.01), callers=4, seconds=4, visits=stays)
    figures = they.figures()
    assert figures["refused"] == figures["dropped"] == 0
    # Two pieces of 5 ms, and at most two steps before each.
    for kind in ("stay0", "stay1"):
        assert len(they.joined.waits[kind]) == 4
        assert 10 <= figures[f"{kind}_p50_ms"] <= figures[f"{kind}_max_ms"] < 60
    assert 0 < len(they.joined.latencies) < len(they.latencies)
    assert abs(figures["frames"] - 4 * 4 / 0.08) <= 16


def test_an_engine_that_is_too_slow_shows():
    figures = paced(Timed(2, step_s=0.2), callers=2, seconds=8).figures()
    assert figures["late_pct"] == 100
    assert figures["dropped"] == 2
    assert figures["max_ms"] > 1000


class Failing(Timed):
    def prefill(self, row, params):
        raise MemoryError
        yield


def test_nobody_is_let_in():
    they = paced(Failing(2, step_s=0.01), callers=2, seconds=4)
    assert they.refused == 2
    assert not they.latencies


def test_busy_callers_leave_nothing_behind():
    core = EngineCore(EchoModel(3))
    they = BusyCallers(
        3,
        np.ones((3, 1920), np.float32),
        frames=400,
        seconds=30,
        params=lambda lease: OpenParams(),
        change=0.1,
    )
    serve(core, they)
    stats = core.stats()
    assert stats.free == 3
    assert they.turns == 400 == stats.steps
    assert they.opened > 10
    assert they.errors == 0
    assert they.answers == stats.frames


def test_cases_in_words():
    assert Case.parse("8") == Case(8)
    assert Case.parse("400:fp8:750") == Case(400, "fp8", 750)
    assert Case.parse("64::0:fp8") == Case(64, "bf16", None, "fp8")
    for wrong in ("", "x", "1:int4", "1:fp8:x", "1:fp8:1:bf16:1"):
        with pytest.raises(ValueError, match=r"isn't SESSIONS|invalid literal"):
            Case.parse(wrong)


def test_a_page_puts_the_reference_beside_the_step_and_keeps_the_last_figure():
    machine = Machine(device="X", memory_gb=1, copy_tb_s=1, versions={"torch": "1"}, taken="today")
    measured = [
        Measured("reference", Case(1), {"p50_ms": 20.0, "p99_ms": 21.0}),
        Measured("step", Case(1), {"p50_ms": 9.0, "p99_ms": 9.5}),
        Measured("step", Case(1), {"p50_ms": 5.0, "p99_ms": 5.5}),
        Measured("step", Case(64, "fp8"), {"p50_ms": 24.25, "p99_ms": 25.0}),
    ]
    lines = page([machine, machine], measured).splitlines()
    assert sum("X, 1 GB" in line for line in lines) == 1
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| bf16 |" in line
    ]
    assert rows == [
        ["1", "3000", "bf16", "bf16", "20", "5", "5.5", "0.25"],
        ["64", "3000", "fp8", "bf16", "", "24.2", "25", ""],
    ]
    svg = plot(measured)
    assert svg.count("<polyline") == 3
    assert "fp8, 3000 frames" in svg


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3, 17, [4, 6, 8, 10, 12, 14, 16]), (-1, 1, None)],
)
def test_ticks_are_round(low, high, expected):
    found = ticks(low, high)
    assert 3 <= len(found) <= 9
    assert low <= found[0] < found[-1] <= high
    assert expected is None or found == pytest.approx(expected)


def run_tiny(path, sections, cases):
    arguments = ["--device", "cpu", "--tiny", "--sections", sections, "--cases", cases]
    status = main([*arguments, "--seconds", "0.5", "--json", str(path / "run.json")])
    return status, read_run(path / "run.json")


def test_all_of_it_on_a_tiny_model(tmp_path, capsys):
    status, run = run_tiny(tmp_path, "step,soak", "1,2::300")
    assert status == 0
    assert not run.failed
    assert {(line.section, line.case.sessions) for line in run.measured} == {
        (section, sessions) for section in ("step", "soak") for sessions in (1, 2)
    }
    for line in run.measured:
        assert line.figures["steps"] > 0
        if line.section == "soak":
            assert line.figures["free_slots"] == line.case.sessions
    assert run.machine.versions["torch"]
    assert capsys.readouterr().out.count("free_slots") == 1 + 2


def test_a_failed_section_stops_no_other(tmp_path, capsys):
    status, run = run_tiny(tmp_path, "soak,step", "1::40")
    assert status == 1
    assert set(run.failed) == {"soak"}, "its prompts are too long for the context"
    assert [line.section for line in run.measured] == ["step"]
    assert "BadParams" in capsys.readouterr().err


def test_sessions_are_the_same_alone():
    model = real_model(torch.device("cpu"), slots=2, context=150, fixed=True, tiny=True)
    figures = identity(model, seconds=60, steps=15)
    assert figures["steps"] == 15
    assert figures["compared_sessions"] >= 2
    assert figures["compared_frames"] >= 20


def test_a_session_that_is_another_alone_is_found():
    model = real_model(torch.device("cpu"), slots=2, tiny=True)
    step = model.step
    model.step = lambda rows, pcm: step(rows, pcm + 0.01 * (len(rows) == 1))
    with pytest.raises(AssertionError, match="at frame 0"):
        identity(model, seconds=60, steps=5)


def test_a_model_is_gone_before_the_next_is_built():
    models = []

    def use(model):
        models.append(weakref.ref(model))
        model.itself = model
        return models[0]() is model

    cpu = torch.device("cpu")
    assert [with_model(cpu, Case(1), use, tiny=True) for _ in range(2)] == [True, False]
    assert [model() for model in models] == [None, None]
