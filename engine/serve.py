"""The engine's loop: what a model's thread or process does all day."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from engine.api import EngineError, Lease
from engine.core import EngineCore, PrefillFailed
from engine.gate import Gate
from engine.messages import (
    Close,
    Command,
    Event,
    Feed,
    GetStats,
    Live,
    Open,
    Outputs,
    Refused,
    SlotsChanged,
    StatsTaken,
)
from engine.stages.messages import AbortJob, Grant, JobEnded, JobFailed, Produced, StartJob

logger = logging.getLogger(__name__)


class Port(Protocol):
    """The engine's end of the line to its owner."""

    def receive(self, *, wait_s: float | None) -> Iterable[Command] | None:
        """What has come in, in order; waits so long for something, None for ever. None: the owner
        is gone.
        """
        ...

    def send(self, event: Event) -> None:
        """Tells the owner."""
        ...


def serve(core: EngineCore, port: Port, gate: Gate | None = None) -> None:
    """Runs the engine until its owner is gone. Raises what a model's step raises.

    Each turn takes in what is there, steps what is ready and does one piece of other work; so a
    frame is stepped at once when the engine is idle, and with others after a step it just missed.
    The gate is closed while frames are ready or in a step.
    """
    gate = gate or Gate()
    spec = core.spec
    while (commands := port.receive(wait_s=core.idle_s)) is not None:
        for command in commands:
            _obey(core, port, command)
        gate.closed = core.ready
        if outputs := core.step():
            port.send(Outputs(outputs))
            gate.closed = core.ready
        match core.advance():
            case Lease() as lease:
                port.send(Live(lease))
            case PrefillFailed(lease=failed, error=error):
                if not isinstance(error, EngineError):
                    logger.error("prefill of lease %d failed", failed, exc_info=error)
                port.send(Refused.by(failed, error))
            case Produced() | JobEnded() | JobFailed() as event:
                port.send(event)
        if core.spec is not spec:
            spec = core.spec
            port.send(SlotsChanged(spec.slots, spec.capacity))


def _obey(core: EngineCore, port: Port, command: Command) -> None:
    match command:
        case Feed(frames=frames, arrived=arrived):
            core.feed(frames, arrived)
        case Open(lease=lease, params=params):
            try:
                core.open(lease, params)
            except EngineError as error:
                port.send(Refused.by(lease, error))
        case Close(lease=lease):
            core.close(lease)
        case StartJob() | AbortJob() | Grant():
            core.stages.obey(command)
        case GetStats(request=request):
            port.send(StatsTaken(request, core.stats()))
