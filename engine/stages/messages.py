"""What the owner of stages and those who run them say to each other.

A job is the work of one stage on one request. Its runner may make `WINDOW` pieces that nobody has
taken; each Grant allows it more. So a slow reader holds up its own request and nothing grows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.stages.values import Piece, StageEnd, StageInput, StageMetrics

WINDOW: Final = 64
"""Pieces of a job that may be under way or wait for their reader."""


class StartJob(msgspec.Struct, frozen=True, tag=True):
    """Begin a job, or queue it. Answered by Produced, then JobEnded or JobFailed."""

    job: int
    stage: str
    given: StageInput


class AbortJob(msgspec.Struct, frozen=True, tag=True):
    """Forget a job, wherever it is; without an answer."""

    job: int


class Grant(msgspec.Struct, frozen=True, tag=True):
    """So many more pieces of a job have been taken."""

    job: int
    pieces: int


class Produced(msgspec.Struct, frozen=True, tag=True):
    """A job has made something."""

    job: int
    piece: Piece


class JobEnded(msgspec.Struct, frozen=True, tag=True):
    """A job is done."""

    job: int
    end: StageEnd
    metrics: StageMetrics


class JobFailed(msgspec.Struct, frozen=True, tag=True):
    """A job can't go on, and why."""

    job: int
    message: str
    field: str | None = None
    """The request's field at fault; empty if the request is at fault without saying which."""


JobCommand = StartJob | AbortJob | Grant
JobEvent = Produced | JobEnded | JobFailed
