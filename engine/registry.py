"""Builds the model that a config names."""

from __future__ import annotations

from engine.api import EngineConfig, EngineError
from engine.model import LockstepModel

ECHO_SLOTS = 64


def build_model(config: EngineConfig) -> LockstepModel:
    """Loads `config.model`. Importing this module loads no torch, and neither does "echo".

    Raises EngineError in the model's own words if there is no such model or it can't be loaded.
    """
    if config.model == "echo":
        from engine.echo import EchoModel

        return EchoModel(config.slots or ECHO_SLOTS, config.delay_frames)
    raise EngineError(f"no model {config.model!r}: choose echo")
