"""How stages are put together: what the deploy file says, as plain data."""

from __future__ import annotations

import msgspec


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline."""

    kind: str
    """A name from `engine.stages.kinds.KINDS`."""
    inputs: tuple[str, ...] = ()
    """The stages whose text it takes; none: it takes the request itself."""
    final: bool = False
    """Its output is the answer."""
    max_running: int = 16
    """Requests that it works on at a time; others wait."""
    options: dict[str, object] = {}
    """What its kind can be told."""


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A graph of stages that answers requests of one mode."""

    model: str
    """What requests call it."""
    stages: dict[str, StageConfig]
    max_requests: int = 64
    """Requests at a time, waiting and running; more are refused."""
