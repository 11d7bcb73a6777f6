"""Builds the model that a config names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from engine.api import EngineConfig, EngineError
from engine.capacity import MAX_SLOTS
from engine.devices import refuse_cuda_options
from engine.model import LockstepModel

ECHO_SLOTS: Final = 64
STEP_MODES: Final = ("ready", "fixed")
ZOO: Final = Path(__file__).parent / "zoo"
"""Model directories that come with the package."""


def packaged_models() -> tuple[str, ...]:
    """The names of the models in the package."""
    return tuple(sorted(file.parent.name for file in ZOO.glob("*/config.json")))


def build_model(config: EngineConfig) -> LockstepModel:
    """Loads `config.model`, of which the echoes need no torch; nor does importing this module.

    Raises EngineError in the model's own words if it can't be loaded, or if there is none of that
    name.
    """
    if config.step_mode not in STEP_MODES:
        raise EngineError(f"no step mode {config.step_mode!r}: choose {' or '.join(STEP_MODES)}")
    if isinstance(config.slots, int) and config.slots < 1:
        raise EngineError(f"slots must be at least 1, not {config.slots}")
    if config.model in ("echo", "echo-video"):
        from engine.echo import EchoModel, EchoVideoModel

        refuse_cuda_options(config, "an echo")
        kind = EchoModel if config.model == "echo" else EchoVideoModel
        if config.slots == "auto":
            return kind(MAX_SLOTS, config.delay_frames, slots_by_memory=True)
        return kind(config.slots or ECHO_SLOTS, config.delay_frames)
    if config.delay_frames:
        raise EngineError("delay_frames is for the echoes only")
    if config.model == "tiny":
        return _build_tiny(config)
    path, name = _locate(config.model)
    return _build_directory(path, config, name)


def _build_tiny(config: EngineConfig) -> LockstepModel:
    from engine.tiny import write_tiny

    with tempfile.TemporaryDirectory(prefix="tiny-") as path:
        write_tiny(Path(path))
        return _build_directory(Path(path), config)


def _build_directory(path: Path, config: EngineConfig, name: str | None = None) -> LockstepModel:
    from engine.directory import read_directory
    from engine.load import load_model

    return load_model(read_directory(path, name), config)


def _locate(model: str) -> tuple[Path, str | None]:
    """Where a model's files are, and its name if the place doesn't say it."""
    from engine.hub import fetch, is_repository

    packaged = packaged_models()
    if model in packaged:
        return ZOO / model, None
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path, None
    if is_repository(model):
        return fetch(model), model
    names = ", ".join(("echo", "echo-video", "tiny", *packaged))
    raise EngineError(
        f"no model {model!r}: choose {names}, a directory or a Hugging Face repository"
    )
