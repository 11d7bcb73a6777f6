"""The times of one stage's work on one request."""

from __future__ import annotations

from engine.stages.values import StageMetrics


class Stopwatch:
    """Takes the moments of one job, in monotonic seconds."""

    __slots__ = ("_arrived", "_first", "_last", "_longest", "_outputs", "_started")

    def __init__(self, arrived: float) -> None:
        self._arrived = self._first = self._last = arrived
        self._started: float | None = None
        self._longest = 0.0
        self._outputs = 0

    def start(self, now: float) -> None:
        """Its work begins; later calls count for nothing."""
        self._started = now if self._started is None else self._started

    def output(self, now: float) -> None:
        """It has made something."""
        if self._outputs:
            self._longest = max(self._longest, now - self._last)
        else:
            self._first = now
        self._last = now
        self._outputs += 1

    def stop(self, stage: str, now: float) -> StageMetrics:
        """Its work has ended."""
        made, several = self._outputs > 0, self._outputs > 1
        return StageMetrics(
            stage=stage,
            wait_s=None if self._started is None else self._started - self._arrived,
            first_output_s=self._first - self._arrived if made else None,
            inter_output_mean_s=(
                (self._last - self._first) / (self._outputs - 1) if several else None
            ),
            inter_output_max_s=self._longest if several else None,
            total_s=now - self._arrived,
            outputs=self._outputs,
        )
