"""Names of devices, and what may be asked of which. Importing this module loads no torch."""

from __future__ import annotations

import re
from typing import Final

from engine.api import EngineConfig, EngineError

_NAME: Final = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_device(name: str) -> None:
    """Raises EngineError for what is no device's name."""
    if not _NAME.fullmatch(name):
        raise EngineError(f"no device {name!r}: choose auto, cpu, cuda or cuda:INDEX")


def refuse_cuda_options(config: EngineConfig, whom: str) -> None:
    """Raises EngineError if `config` has a setting that only models on CUDA can take."""
    for name in ("context", "kv", "weights"):
        if (value := getattr(config, name)) is not None:
            raise EngineError(f"{name} {value}: only models on CUDA can be told, not {whom}")
