"""The network: where things are in the picture, and from that what the joints do."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from recipes.robot.arm import MAX_SPEED

HORIZON: Final = 8
"""Actions for one observation."""
_POINTS: Final = 6
_HIDDEN: Final = 96


class Network(nn.Module):
    """Spatial softmax over a small convolution (Levine et al. 2016, "End-to-End Training of Deep
    Visuomotor Policies"), then a perceptron.
    """

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, _POINTS, 3, padding=1),
        )
        self.act = nn.Sequential(
            nn.Linear(2 * _POINTS + 2, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, HORIZON * 2),
        )

    def forward(self, images: Tensor, joints: Tensor) -> Tensor:
        """Images uint8 [rows, side, side, 3], joints float32 [rows, 2] to speeds [rows, 8, 2]."""
        seen = self.look(images.permute(0, 3, 1, 2).float() / 255 - 0.5)
        features = torch.cat([_spatial_softmax(seen), joints], 1)
        speeds: Tensor = self.act(features).view(-1, HORIZON, 2)
        return MAX_SPEED * torch.tanh(speeds)


def _spatial_softmax(maps: Tensor) -> Tensor:
    """The expected place [rows, 2 * maps] of each map's activation, in [-1, 1]."""
    rows, count, height, width = maps.shape
    weights = maps.reshape(rows, count, height * width).softmax(-1).view(maps.shape)
    x = (weights.sum(2) * torch.linspace(-1, 1, width)).sum(-1)
    y = (weights.sum(3) * torch.linspace(-1, 1, height)).sum(-1)
    return torch.cat([x, y], 1)
