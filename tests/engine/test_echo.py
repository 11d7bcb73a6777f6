import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.api import BadParams, OpenParams
from engine.echo import FRAME_SIZE, EchoModel, EchoVideoModel, colour
from tests.pictures import COLOURS, encoded


def frames(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, FRAME_SIZE)).astype(np.float32)


def test_spec_says_what_it_is() -> None:
    spec = EchoModel(3, 2).spec
    assert (spec.name, spec.sample_rate, spec.frame_size) == ("echo", 24_000, 1_920)
    assert (spec.slots, spec.startup_frames) == (3, 2)
    assert not any([spec.text, spec.sampling, spec.persona, spec.voice_audio, spec.video])


def test_gives_the_frame_back_in_the_same_step() -> None:
    model, pcm = EchoModel(4), frames(2)
    result = model.step([3, 1], pcm)
    assert np.array_equal(result.pcm, pcm)
    assert list(result.heard) == [True, True]
    assert list(result.text) == ["", ""]


@given(
    st.integers(0, 4),
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), unique=True, max_size=3), st.integers(-1, 2)),
        max_size=20,
    ),
)
def test_rows_are_delayed_each_on_its_own(
    delay: int, schedule: list[tuple[list[int], int]]
) -> None:
    """Any order of steps and resets: each row is its own queue of `delay` frames."""
    model = EchoModel(3, delay)
    said: list[list[np.ndarray]] = [[], [], []]
    for turn, (rows, reset) in enumerate(schedule):
        if rows:
            pcm = frames(len(rows), turn)
            result = model.step(rows, pcm)
            for at, row in enumerate(rows):
                said[row].append(pcm[at])
                late = len(said[row]) - 1 - delay
                assert result.heard[at] == (late >= 0)
                if late >= 0:
                    assert np.array_equal(result.pcm[at], said[row][late])
        if reset >= 0:
            model.reset([reset])
            said[reset].clear()


def test_a_result_is_not_touched_by_later_steps() -> None:
    model = EchoModel(1, 1)
    first = frames(1)
    model.step([0], first)
    given_back = model.step([0], frames(1, 1)).pcm
    model.step([0], frames(1, 2))
    assert np.array_equal(given_back, first)


@pytest.mark.parametrize("field", OpenParams.__struct_fields__)
def test_refuses_every_parameter_by_name(field: str) -> None:
    with pytest.raises(BadParams) as caught:
        EchoModel(1).check(OpenParams(**{field: 0}))
    assert caught.value.field == field


def test_takes_no_parameters_and_needs_no_prefill() -> None:
    model = EchoModel(1)
    model.check(OpenParams())
    assert list(model.prefill(0, OpenParams())) == []


@pytest.mark.parametrize(("slots", "delay"), [(0, 0), (1, -1)])
def test_refuses_impossible_sizes(slots: int, delay: int) -> None:
    with pytest.raises(ValueError, match="must"):
        EchoModel(slots, delay)


def test_loads_without_torch() -> None:
    code = "import sys, engine.echo, engine.core; sys.exit('torch' in sys.modules)"
    root = Path(engine.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


@pytest.mark.parametrize("codec", ["mjpeg", "png"])
def test_the_colour_of_an_image(codec: str) -> None:
    assert {name: colour(encoded(name, codec)) for name in COLOURS} == {n: n for n in COLOURS}


@pytest.mark.parametrize("bad", [b"", b"\xff\xd8\xff", encoded("red")[:40], b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_said(bad: bytes) -> None:
    with pytest.raises(ValueError, match="neither JPEG nor PNG"):
        colour(bad)


def test_it_says_what_it_sees_when_that_has_changed() -> None:
    model, pcm = EchoVideoModel(2), frames(2)
    assert model.spec.video
    model.see(1, [encoded("blue"), encoded("red")])
    result = model.step([0, 1], pcm)
    assert np.array_equal(result.pcm, pcm)
    assert list(result.text) == ["", " I see red."]
    model.see(1, [encoded("red")])
    assert list(model.step([0, 1], pcm).text) == ["", ""]
    model.reset([1])
    model.see(1, [encoded("red")])
    assert list(model.step([1], pcm[:1]).text) == [" I see red."]
