"""What conversations are roughened with."""

import pytest
import torch

from recipes.nano.clips import SAMPLE_RATE
from recipes.nano.mixing import augment, dynamics


def _two_levels() -> torch.Tensor:
    """Half a second at 0.8 and half a second 20 dB below, twice, of a 300 Hz tone."""
    t = torch.arange(2 * SAMPLE_RATE) / SAMPLE_RATE
    loud = (t * 2).long() % 2 == 0
    return (torch.sin(2 * torch.pi * 300 * t) * torch.where(loud, 0.8, 0.08))[None]


def _drop_db(x: torch.Tensor) -> float:
    middle = SAMPLE_RATE // 8
    loud, soft = (
        x[0, at + middle : at + 3 * middle].pow(2).mean().sqrt()
        for at in (SAMPLE_RATE, 3 * SAMPLE_RATE // 2)
    )
    return float(20 * torch.log10(loud / soft))


@pytest.mark.parametrize(("power", "drop"), [(0.0, 20), (0.5, 30), (-0.5, 10), (2.0, 32)])
def test_dynamics_stretch_the_levels_in_db_and_by_twelve_at_most(power: float, drop: float) -> None:
    assert _drop_db(dynamics(_two_levels(), torch.tensor([[power]]))) == pytest.approx(
        drop, abs=0.5
    )


def test_dynamics_leave_silence_silent() -> None:
    quiet = torch.zeros(1, SAMPLE_RATE)
    for power in (-0.3, 0.0, 0.5):
        assert torch.equal(dynamics(quiet, torch.tensor([[power]])), quiet)


def test_augment_keeps_the_shape_and_the_range() -> None:
    torch.manual_seed(1)
    x = torch.cat([_two_levels(), torch.zeros(1, 2 * SAMPLE_RATE)])
    for _ in range(5):
        out = augment(x)
        assert out.shape == x.shape
        assert out.isfinite().all()
        assert out.abs().max() <= 1
