"""The codec against its golden, and its rows against each other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.mimi.codec import Mimi, MimiState
from engine.mimi.config import MimiConfig
from engine.rows import Rows

GOLDEN = Path(__file__).parents[1] / "goldens" / "mimi-tiny"
SLOTS = 3
LENGTH = 14
"""Frames of a stream: 28 positions, more than the golden's context of 20."""
STARTS = (5, 7, 16)
"""First frames of streams that never come near a tie between two codes (nearest: 1e-3)."""

Stream = tuple[Tensor, Tensor, Tensor]
"""Samples [LENGTH, 1920], codes [LENGTH, 8] and decoded samples [LENGTH, 1920]."""


@pytest.fixture(scope="module", autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def load() -> Mimi:
    config = MimiConfig.from_json(json.loads((GOLDEN / "config.json").read_text()))
    return Mimi.load(GOLDEN / "model.safetensors", config)


MIMI = load()
CASE = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / "case.npz").items()}
PCM = CASE["pcm"].view(-1, 1920)
CODES = CASE["codes"].t().contiguous()


def stream(start: int, *, copy: bool) -> Stream:
    """A stream that is alone in its state."""
    state, rows = MIMI.state(1), Rows([0], copy=copy)
    pcm = PCM[start : start + LENGTH]
    with torch.inference_mode():
        codes = torch.cat([MIMI.encode(state, rows, frame[None]) for frame in pcm])
        sound = torch.cat([MIMI.decode(state, rows, frame[None]) for frame in codes])
    return pcm, codes, sound


ALONE = {copy: [stream(start, copy=copy) for start in STARTS] for copy in (False, True)}


def row_of(state: MimiState, row: int) -> list[Tensor]:
    """A copy of all that is remembered of a row."""
    parts = [state.encoder, state.downsample, state.upsample, state.decoder]
    for transformer in (state.encoder_transformer, state.decoder_transformer):
        parts += [transformer.offsets, transformer.ring.kv.transpose(0, 1)]
    return [part[row].clone() for part in parts]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_golden():
    state, rows = MIMI.state(1), Rows([0])
    codes = torch.cat([MIMI.encode(state, rows, frame[None]) for frame in PCM])
    sound = torch.cat([MIMI.decode(state, rows, frame[None]) for frame in CODES])
    assert torch.equal(codes, CODES)
    assert sound.dtype == torch.float32
    assert (sound.flatten() - CASE["decoded"]).abs().max() < 1e-5


@given(
    st.lists(
        st.tuples(
            st.permutations(range(SLOTS)), st.integers(1, SLOTS), st.none() | st.integers(0, 2)
        ),
        min_size=14,
        max_size=30,
    ),
    st.booleans(),
)
@settings(max_examples=25)
def test_streams_that_come_and_go_are_each_as_alone(schedule, fixed):
    """A step: which rows in which order, and a row that is recycled before.

    One launch has all rows of the step, or in `fixed` each row has its own: then bit by bit.
    """
    with torch.inference_mode():
        state = MIMI.state(SLOTS)
        names, places, begun = list(range(SLOTS)), [0] * SLOTS, SLOTS
        for order, count, recycled in schedule:
            rows = list(order[:count])
            for row in range(SLOTS):
                if row == recycled or places[row] == LENGTH:
                    state.reset([row])
                    names[row], places[row], begun = begun % len(STARTS), 0, begun + 1
            for launch in [[row] for row in rows] if fixed else [rows]:
                others = [row for row in range(SLOTS) if row not in launch]
                before = [row_of(state, row) for row in others]
                expected = [
                    [part[places[row]] for part in ALONE[fixed][names[row]]] for row in launch
                ]
                pcm, codes, sound = (torch.stack(part) for part in zip(*expected, strict=True))
                where = Rows(launch, copy=fixed)
                assert torch.equal(MIMI.encode(state, where, pcm), codes)
                decoded = MIMI.decode(state, where, codes)
                if fixed:
                    assert torch.equal(decoded, sound)
                assert (decoded - sound).abs().max() < 1e-5
                assert all(
                    same(old, row_of(state, row)) for row, old in zip(others, before, strict=True)
                )
                for row in launch:
                    places[row] += 1


def test_a_recycled_row_is_a_fresh_one():
    state = MIMI.state(SLOTS)
    rows = Rows([1])
    for frame in torch.cat([PCM[:12], torch.full((1, 1920), torch.nan)]):
        MIMI.decode(state, rows, MIMI.encode(state, rows, frame[None]))
    kept = row_of(state, 0)
    assert not same(row_of(state, 1), row_of(MIMI.state(1), 0))
    state.reset([1, 2])
    assert same(row_of(state, 1), row_of(MIMI.state(1), 0))
    assert same(row_of(state, 0), kept)


def test_shapes_are_checked():
    state, rows = MIMI.state(2), Rows([0, 1])
    with pytest.raises(ValueError, match=r"pcm is \[1, 1920\], expected \[2, 1920\]"):
        MIMI.encode(state, rows, torch.zeros(1, 1920))
    with pytest.raises(ValueError, match=r"codes are \[2, 4\], expected \[2, 8\]"):
        MIMI.decode(state, rows, torch.zeros(2, 4, dtype=torch.int64))


def test_sizes():
    state = MIMI.state(5)
    held = [part for row in range(5) for part in row_of(state, row)]
    assert state.nbytes == sum(part.nbytes for part in held)
    assert (MIMI.frame_size, MIMI.sample_rate, MIMI.bins, MIMI.books) == (1920, 24000, 64, 8)
    assert MIMI.nbytes > 1_500_000
