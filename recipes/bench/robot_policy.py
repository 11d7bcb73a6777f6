"""A policy that takes as long as it is told, for `recipes.bench.robot`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from engine.policy import Observation


class TimedPolicy:
    """Gives zeros after a while; with `batch` for many robots in the same time."""

    def __init__(self, delay_ms: float) -> None:
        self.metadata = {"delay_ms": delay_ms}
        self._delay_s = delay_ms / 1e3
        self._actions = np.zeros((8, 7), np.float32)

    def infer(self, obs: Observation, reset: bool = False) -> object:
        """Takes its time."""
        return self.infer_batch([obs], [reset])[0]

    def infer_batch(self, observations: Sequence[Observation], _: Sequence[bool]) -> list[object]:
        """Takes the same time for all."""
        time.sleep(self._delay_s)
        return [self._actions for _ in observations]

    def close(self) -> None:
        """There is nothing to close."""


def make(delay_ms: float = 0.0) -> TimedPolicy:
    """The factory."""
    return TimedPolicy(delay_ms)
