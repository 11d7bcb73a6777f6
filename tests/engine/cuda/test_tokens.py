"""Sampling in the kernels against the specification's, on the same logits."""

from __future__ import annotations

import interpreted  # noqa: F401
import pytest
import torch
from torch import Tensor

from engine.cuda.kernels.tokens import draw
from engine.rows import Rows
from engine.sampling import RowSampling, Sampling, kept_tokens, seed_key

ROWS = 4
SETTINGS = [
    Sampling(seed=1),
    Sampling(text_temperature=0.0, audio_temperature=0.0, seed=2),
    Sampling(text_top_k=0, audio_top_k=0, seed=-3),
    Sampling(
        text_temperature=1.7, text_top_k=3, audio_temperature=0.1, audio_top_k=7, seed=1 << 63
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channel", "card"), [(0, 300), (5, 128)])
def test_rows_draw_what_the_specification_draws(
    dtype: torch.dtype, channel: int, card: int
) -> None:
    calls = torch.tensor([0, 1, 7, 4000])
    logits = torch.randn(ROWS, 512, generator=torch.manual_seed(0)).mul(3).to(dtype)
    logits[:, 4] = logits[:, 3]  # a tie
    spec = RowSampling(ROWS, 300, 128, 8)
    for row, sampling in enumerate(SETTINGS):
        spec.set(row, sampling)
    draws = spec.draw(Rows(range(ROWS)), calls)
    wanted = logits[:, :card]
    expected = draws.audio(channel - 1, wanted) if channel else draws.text(wanted)

    assert drawn(logits, calls, channel, card) == expected.tolist()


def test_what_is_no_number_is_not_drawn() -> None:
    logits = torch.randn(ROWS, 512, generator=torch.manual_seed(0))
    logits[:, :7] = torch.nan
    logits[:, 9] = 1000
    assert drawn(logits, torch.zeros(ROWS, dtype=torch.int64), 0, 300) == [9] * ROWS
    logits[:] = torch.nan
    assert max(drawn(logits, torch.zeros(ROWS, dtype=torch.int64), 0, 300)) < 300


def drawn(logits: Tensor, calls: Tensor, channel: int, card: int) -> list[int]:
    """What the kernel draws in each row."""
    width, dtype, i32 = 16, logits.dtype, torch.int32
    kind = "audio" if channel else "text"
    temperature = [getattr(s, f"{kind}_temperature") for s in SETTINGS]
    kept = [
        kept_tokens(t, getattr(s, f"{kind}_top_k"), card)
        for t, s in zip(temperature, SETTINGS, strict=True)
    ]
    made = torch.zeros(ROWS, 9, dtype=i32)
    draw[(ROWS,)](
        logits,
        torch.arange(ROWS, dtype=i32),
        calls.to(i32),
        torch.tensor([seed_key(s.seed) for s in SETTINGS]),
        torch.tensor([t or 1.0 for t in temperature]),
        torch.tensor(kept, dtype=i32),
        torch.full((ROWS, 9), -2, dtype=i32),
        made,
        torch.zeros(ROWS, width, dtype=dtype),
        0,
        torch.zeros(card, width, dtype=dtype),
        torch.zeros(ROWS, width, dtype=dtype),
        torch.zeros(ROWS, 16),
        channel,
        CARD=card,
        CARD_2=512 if card > 256 else 128,
        BITS=16 if dtype is torch.bfloat16 else 32,
        MADE=9,
        LOGITS_STRIDE=logits.stride(0),
        INPUTS_STRIDE=width,
        WIDTH=width,
        BLOCK=width,
        STRIDE=16,
        PDL=False,
    )
    made_here: list[int] = made[:, channel].tolist()
    return made_here
