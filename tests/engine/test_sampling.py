import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.rows import Rows
from engine.sampling import GREEDY, RowSampling, Sampling

TEXT, CARD, BOOKS = 40, 30, 8
CRITICAL_15 = 44.3
"""Chi-square with 15 degrees of freedom exceeds this once in 10 000 times."""


def logits(rows: int, card: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, card, generator=torch.Generator().manual_seed(seed))


def one(sampling: Sampling) -> RowSampling:
    parameters = RowSampling(1, TEXT, CARD, BOOKS)
    parameters.set(0, sampling)
    return parameters


def many(sampling: Sampling, scores: Tensor, calls: range, book: int = 0) -> Tensor:
    """A row's draws in each of the calls, from the same logits."""
    parameters = RowSampling(1, TEXT, len(scores), BOOKS)
    parameters.set(0, sampling)
    draw = parameters.draw(Rows([0] * len(calls)), torch.tensor(calls))
    return draw.audio(book, scores.expand(len(calls), -1))


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_greedy_is_argmax(seed: int) -> None:
    draw = one(GREEDY).draw(Rows([0]), torch.tensor([seed]))
    text, audio = logits(1, TEXT, seed), logits(1, CARD, seed + 1)
    assert torch.equal(draw.text(text), text.argmax(-1))
    assert torch.equal(draw.audio(3, audio), audio.argmax(-1))


@pytest.mark.parametrize("temperature", [1e-7, 1e-40, 5e-324])
def test_a_temperature_by_which_logits_cant_be_divided_is_greedy(temperature: float) -> None:
    scores = logits(1, CARD)[0]
    scores[0] = 1e-30
    drawn = many(Sampling(audio_temperature=temperature, audio_top_k=0), scores, range(20))
    assert (drawn == scores.argmax()).all()


def test_greedy_among_sampled_rows_is_argmax_with_the_first_of_ties() -> None:
    parameters = RowSampling(3, TEXT, CARD, BOOKS)
    parameters.set(1, GREEDY)
    parameters.set(2, Sampling(audio_top_k=1))
    scores = torch.zeros(3, CARD)
    scores[:, [4, 9, 20]] = 1.0
    for call in range(30):
        drawn = parameters.draw(Rows([0, 1, 2]), torch.tensor([call] * 3)).audio(0, scores)
        assert drawn[1:].tolist() == [4, 4]


@settings(max_examples=60)
@given(top_k=st.integers(1, CARD + 5), seed=st.integers(0, 1000))
def test_only_the_top_k_are_drawn(top_k: int, seed: int) -> None:
    scores = logits(1, CARD, seed)[0]
    drawn = many(Sampling(audio_temperature=5, audio_top_k=top_k, seed=seed), scores, range(200))
    allowed = scores.topk(min(top_k, CARD)).indices
    assert torch.isin(drawn, allowed).all()
    if top_k > 4:
        assert len(drawn.unique()) > 2


def test_rows_of_one_batch_keep_their_own_top_k() -> None:
    parameters = RowSampling(3, TEXT, CARD, BOOKS)
    scores = logits(3, CARD)
    for row, top_k in enumerate((2, 5, 0)):
        parameters.set(row, Sampling(audio_temperature=50, audio_top_k=top_k, seed=row))
    drawn = torch.stack(
        [
            parameters.draw(Rows([0, 1, 2]), torch.tensor([call] * 3)).audio(0, scores)
            for call in range(400)
        ]
    )
    assert [len(drawn[:, row].unique()) for row in range(3)] == [2, 5, CARD]


def test_ties_with_the_last_of_the_top_k_are_kept() -> None:
    scores = torch.zeros(CARD)
    scores[3] = 1.0
    drawn = many(Sampling(audio_top_k=2, audio_temperature=5), scores, range(2000))
    assert len(drawn.unique()) == CARD


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(seed: int, temperature: float) -> None:
    scores, count = logits(1, 16)[0] / 2, 8000
    sampling = Sampling(audio_temperature=temperature, audio_top_k=0, seed=seed)
    drawn = many(sampling, scores, range(count))
    expected = count * (scores / temperature).softmax(-1)
    statistic = ((torch.bincount(drawn, minlength=16) - expected) ** 2 / expected).sum()
    assert statistic < CRITICAL_15


@pytest.mark.parametrize("other", ["call", "book", "seed"])
def test_neighbouring_draws_are_independent(other: str) -> None:
    scores, calls = torch.zeros(4), range(8000)
    sampling = Sampling(audio_temperature=1, audio_top_k=0, seed=7)
    first = many(sampling, scores, calls)
    second = {
        "call": lambda: many(sampling, scores, range(1, 8001)),
        "book": lambda: many(sampling, scores, calls, book=1),
        "seed": lambda: many(Sampling(1, 0, 1, 0, seed=8), scores, calls),
    }[other]()
    pairs = torch.bincount(4 * first + second, minlength=16)
    assert ((pairs - 500.0) ** 2 / 500).sum() < CRITICAL_15


@settings(max_examples=60)
@given(
    row=st.integers(0, 5),
    others=st.lists(st.integers(0, 5), unique=True, max_size=5),
    call=st.integers(0, 1 << 40),
    seed=st.integers(),
)
def test_draws_depend_on_seed_and_position_only(
    row: int, others: list[int], call: int, seed: int
) -> None:
    sampling = Sampling(seed=seed, text_top_k=7, audio_top_k=9)
    text, audio = logits(1, TEXT, 1), logits(1, CARD, 2)
    alone = one(sampling).draw(Rows([0]), torch.tensor([call]))
    parameters = RowSampling(6, TEXT, CARD, BOOKS)
    for other in others:
        parameters.set(other, GREEDY if other % 2 else Sampling(seed=other, audio_top_k=0))
    parameters.set(row, sampling)
    batch = [*[other for other in others if other != row], row]
    calls = torch.tensor([3 * other for other in batch[:-1]] + [call])
    draw = parameters.draw(Rows(batch), calls)
    texts = torch.cat((logits(len(batch) - 1, TEXT, 5), text))
    assert draw.text(texts)[-1] == alone.text(text)[0]
    for book in range(BOOKS):
        audios = torch.cat((logits(len(batch) - 1, CARD, 6), audio))
        assert draw.audio(book, audios)[-1] == alone.audio(book, audio)[0]


def test_known_draws() -> None:
    """The noise is part of what a seed means: it must not change."""
    drawn = many(Sampling(audio_temperature=1, audio_top_k=0, seed=42), torch.zeros(1000), range(6))
    assert drawn.tolist() == [495, 674, 135, 10, 660, 110]


def test_reset_gives_the_defaults() -> None:
    parameters = RowSampling(2, TEXT, CARD, BOOKS)
    scores = logits(1, CARD)
    before = [
        parameters.draw(Rows([1]), torch.tensor([call])).audio(0, scores) for call in range(20)
    ]
    parameters.set(1, Sampling(3, 4, 5, 6, 7))
    parameters.reset(Rows([1]))
    after = [
        parameters.draw(Rows([1]), torch.tensor([call])).audio(0, scores) for call in range(20)
    ]
    assert before == after


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_temperature", -0.1),
        ("audio_temperature", float("nan")),
        ("audio_temperature", float("inf")),
        ("text_top_k", -1),
        ("audio_top_k", -2),
    ],
)
def test_bad_parameters_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        Sampling(**{field: value})
