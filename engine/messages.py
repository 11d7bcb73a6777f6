"""What the owner of an engine and the engine say to each other, in a thread or a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.api import (
    BadParams,
    EngineError,
    EngineStats,
    Frame,
    Lease,
    NoFreeSlot,
    OpenParams,
    Overloaded,
    StepOutput,
)
from engine.stages.messages import AbortJob, Grant, JobEnded, JobFailed, Produced, StartJob


def in_words(error: Exception) -> str:
    """What an exception says; one that isn't ours is named, too."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


class Open(msgspec.Struct, frozen=True, tag=True):
    """Lease a slot under this id. Answered by Live or Refused."""

    lease: int
    params: OpenParams


class Close(msgspec.Struct, frozen=True, tag=True):
    """End a lease, live or not; without an answer."""

    lease: int


class GetStats(msgspec.Struct, frozen=True, tag=True):
    """Answered by StatsTaken with the same number."""

    request: int


class Feed(msgspec.Struct, frozen=True):
    """Frames for the next steps, handed over at `arrived` (monotonic seconds)."""

    frames: Sequence[Frame]
    arrived: float


class Live(msgspec.Struct, frozen=True, tag=True):
    """The lease's slot is prefilled."""

    lease: Lease


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An open has failed, and why."""

    lease: int
    reason: Literal["no_free_slot", "overloaded", "bad_params", "failed"]
    message: str
    field: str = ""

    @classmethod
    def by(cls, lease: int, error: Exception) -> Refused:
        """Makes an exception sendable."""
        match error:
            case Overloaded():
                return cls(lease, "overloaded", str(error))
            case NoFreeSlot():
                return cls(lease, "no_free_slot", str(error))
            case BadParams():
                return cls(lease, "bad_params", str(error), error.field)
            case _:
                return cls(lease, "failed", in_words(error))

    def error(self) -> EngineError:
        """The exception again."""
        match self.reason:
            case "no_free_slot":
                return NoFreeSlot(self.message)
            case "overloaded":
                return Overloaded(self.message)
            case "bad_params":
                return BadParams(self.field, self.message)
            case "failed":
                return EngineError(self.message)


class StatsTaken(msgspec.Struct, frozen=True, tag=True):
    """The engine's own gauges and counters."""

    request: int
    stats: EngineStats


class SlotsChanged(msgspec.Struct, frozen=True, tag=True):
    """The engine takes more sessions than before, or fewer, and why."""

    slots: int
    capacity: str


class Outputs(msgspec.Struct, frozen=True):
    """All that one step gave."""

    outputs: list[StepOutput]


Order = Open | Close | GetStats | StartJob | AbortJob | Grant
"""What an owner says in words; frames go another way."""
Command = Order | Feed
Event = Live | Refused | StatsTaken | SlotsChanged | Outputs | Produced | JobEnded | JobFailed
