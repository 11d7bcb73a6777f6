import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.ring import RingKV
from engine.rows import Rows

HEADS, HEAD_DIM, LAYERS, TOTAL = 2, 4, 2, 40


def stream(seed: int) -> tuple[Tensor, Tensor]:
    """A row's queries [TOTAL, heads, head_dim], and its keys and values."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(TOTAL, HEADS, HEAD_DIM, generator=generator)
    return query, torch.randn(TOTAL, 2, HEADS, HEAD_DIM, generator=generator)


def new_ring(context: int = 6, slots: int = 4) -> RingKV:
    return RingKV(LAYERS, slots, HEADS, context, HEAD_DIM)


def step(
    ring: RingKV, rows: Rows, starts: list[int], length: int, *, counted: bool = True
) -> Tensor:
    """Appends `length` positions of each row's stream: [n, length, heads * head_dim]."""
    ends = [slice(start, start + length) for start in starts]
    streams = [stream(row) for row in rows.rows]
    query = torch.stack([stream[0][end] for stream, end in zip(streams, ends, strict=True)])
    kv = torch.stack([stream[1][end] for stream, end in zip(streams, ends, strict=True)])
    span = ring.span(rows, torch.tensor(starts), length, starts if counted else None)
    heard = [ring.attend(layer, span, query, kv) for layer in range(LAYERS)]
    assert torch.equal(heard[0], heard[1])
    return heard[0]


def dense(row: int, position: int, last: int, context: int) -> Tensor:
    """What the query at `position` hears when `last` is the newest position written."""
    query, kv = stream(row)
    seen = kv[max(0, last - context + 1) : position + 1]
    scores = torch.einsum("hd,phd->hp", query[position], seen[:, 0]) / HEAD_DIM**0.5
    return torch.einsum("hp,phd->hd", scores.softmax(-1), seen[:, 1]).flatten()


@settings(max_examples=60)
@given(
    context=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    rows=st.sampled_from([[0], [2], [0, 1], [1, 2, 3], [3, 0], [2, 0, 1]]),
    counted=st.booleans(),
    copy=st.booleans(),
)
def test_equals_dense_attention_in_every_chunking(
    context: int, lengths: list[int], rows: list[int], counted: bool, copy: bool
) -> None:
    ring = new_ring(context)
    # Rows at ages of their own: some wrap while others haven't.
    starts = [3 * place for place in range(len(rows))]
    for place, row in enumerate(rows):
        for position in range(starts[place]):
            step(ring, Rows([row]), [position], 1)
    for length in lengths:
        length = min(length, context)
        if max(starts) + length > TOTAL:
            break
        heard = step(ring, Rows(rows, copy=copy), starts, length, counted=counted)
        for place, row in enumerate(rows):
            last = starts[place] + length - 1
            expected = [dense(row, q, last, context) for q in range(starts[place], last + 1)]
            torch.testing.assert_close(heard[place], torch.stack(expected))
        starts = [start + length for start in starts]


def test_other_rows_keep_their_bits() -> None:
    ring = new_ring()
    for position in range(9):
        step(ring, Rows([0, 1, 2, 3]), [position] * 4, 1)
    before = ring.kv.clone()
    step(ring, Rows([1]), [9], 1)
    step(ring, Rows([3, 1]), [9, 10], 2)
    ring.reset(Rows([3]))
    assert torch.equal(ring.kv[:, [0, 2]], before[:, [0, 2]])
    assert not torch.equal(ring.kv[:, 1], before[:, 1])
    assert not ring.kv[:, 3].any()


def test_a_copied_row_has_the_same_bits_wherever_it_is() -> None:
    alone, crowded = new_ring(slots=1), new_ring(slots=4)
    query, kv = stream(0)
    for position in range(15):
        step(crowded, Rows([0, 1, 3]), [position] * 3, 1)
        made = []
        for ring, row in ((alone, 0), (crowded, 2)):
            span = ring.span(Rows([row], copy=True), torch.tensor([position]), 1, [position])
            part = slice(position, position + 1)
            made.append(ring.attend(0, span, query[None, part], kv[None, part]))
        assert torch.equal(*made)


def test_only_the_used_cells_are_touched_and_no_mask_is_made_without_need() -> None:
    ring = new_ring(context=8)
    offsets = torch.tensor([2, 2])
    assert ring.span(Rows([0, 1]), offsets, 1, [2, 2]).used == 3
    assert ring.span(Rows([0, 1]), offsets, 1, [2, 2]).mask is None
    assert ring.span(Rows([0, 1]), torch.tensor([2, 4]), 1, [2, 4]).mask is not None
    assert ring.span(Rows([0, 1]), torch.tensor([20, 400]), 1, [20, 400]).mask is None
    assert ring.span(Rows([0, 1]), offsets, 2, [2, 2]).mask is not None
    assert ring.span(Rows([0, 1]), offsets, 1).used == 8


@pytest.mark.parametrize("length", [0, 7])
def test_a_step_must_fit(length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} positions doesn't fit a ring of 6"):
        new_ring().span(Rows([0]), torch.tensor([0]), length)


def test_saved_cells_continue_another_row() -> None:
    ring = new_ring()
    for position in range(4):
        step(ring, Rows([0]), [position], 1)
    saved = ring.save(0, 4)
    assert saved.shape == (LAYERS, 4, 2, HEADS, HEAD_DIM)
    ring.load(2, saved)
    assert torch.equal(ring.kv[:, 2], ring.kv[:, 0])
    ring.reset(Rows([0]))
    assert ring.kv[:, 2, :4].all()


def test_nbytes() -> None:
    assert new_ring().nbytes == LAYERS * 4 * 6 * 2 * HEADS * HEAD_DIM * 4
