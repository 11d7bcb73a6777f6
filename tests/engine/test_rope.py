import math

import pytest
import torch

from engine.rope import frequencies, rotate, rotation


def test_rotates_interleaved_pairs_by_the_row_s_own_positions() -> None:
    positions = torch.tensor([[0, 1, 2], [7, 3000, 200_000]])
    x = torch.randn(2, 3, 2, 6, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, rotation(positions, frequencies(6, 10_000.0)))
    for row in range(2):
        for step in range(3):
            for pair in range(3):
                angle = int(positions[row, step]) * 10_000.0 ** (-2 * pair / 6)
                a, b = x[row, step, :, 2 * pair], x[row, step, :, 2 * pair + 1]
                expected = torch.stack(
                    (
                        a * math.cos(angle) - b * math.sin(angle),
                        a * math.sin(angle) + b * math.cos(angle),
                    ),
                    dim=-1,
                )
                # At 200 000 the fp32 angle itself is off by up to 1e-2.
                tolerance = 2e-2 if positions[row, step] > 10_000 else 1e-3
                got = turned[row, step, :, 2 * pair : 2 * pair + 2]
                torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


def test_position_zero_changes_nothing() -> None:
    x = torch.randn(1, 1, 2, 8)
    assert torch.equal(rotate(x, rotation(torch.zeros(1, 1).long(), frequencies(8, 1e4))), x)


def test_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(1))
    periods = frequencies(16, 1e4)

    def score(query: int, key: int) -> float:
        turned_q = rotate(q, rotation(torch.tensor([[query]]), periods))
        return float((turned_q * rotate(k, rotation(torch.tensor([[key]]), periods))).sum())

    assert score(5, 2) == pytest.approx(score(103, 100), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-2)


def test_half_precision_is_rotated_in_fp32() -> None:
    x = torch.randn(1, 4, 2, 8, dtype=torch.bfloat16)
    turn = rotation(torch.arange(900, 904)[None], frequencies(8, 1e4))
    assert torch.equal(rotate(x, turn), rotate(x.float(), turn).bfloat16())


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim must be even, not 7"):
        frequencies(7, 1e4)
