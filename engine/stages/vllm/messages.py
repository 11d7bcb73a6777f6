"""What vLLM's process tells its owner beside the jobs' events."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.stages.kinds import VllmOptions
from engine.stages.messages import JobEnded, JobFailed, Produced

GATE_ENV: Final = "DUPLEX_ENGINE_GATE"
"""Where the process and its own children find the gate of the conversations' engine."""


class VllmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told at its start."""

    stage: str
    max_running: int
    options: VllmOptions


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is there."""


class Gauges(msgspec.Struct, frozen=True, tag=True):
    """The requests that vLLM has, and how many of them its scheduler is running."""

    unfinished: int
    running: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Its last words."""

    message: str


VllmEvent = Loaded | Gauges | Failed | Produced | JobEnded | JobFailed
