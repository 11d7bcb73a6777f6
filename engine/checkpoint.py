"""Reads tensors from safetensors files; every one that is missing, extra or misshapen is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.api import EngineError


class CheckpointError(EngineError):
    """A checkpoint file doesn't hold what its config says."""


class Checkpoint:
    """One safetensors file, read tensor by tensor; `finish` complains of what nobody took."""

    def __init__(self, path: Path, *, device: torch.device | str = "cpu") -> None:
        self.path = path
        self._device = torch.device(device)
        try:
            self._file: Any = safe_open(str(path), framework="pt", device="cpu")
            self._left = set(self._file.keys())  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error
        self._names = frozenset(self._left)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(
        self, name: str, shape: Sequence[int], *, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        """The tensor `name`, in `dtype` (None keeps the file's own).

        Raises CheckpointError if the file hasn't got it, or not in `shape`.
        """
        if name not in self._names:
            raise CheckpointError(f"{self.path.name}: missing tensor {name} {list(shape)}")
        found = tuple(self._file.get_slice(name).get_shape())
        if found != tuple(shape):
            raise CheckpointError(
                f"{self.path.name}: tensor {name} is {list(found)}, expected {list(shape)}"
            )
        self._left.discard(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor.to(device=self._device, dtype=dtype or tensor.dtype)

    def skip(self, pattern: str) -> None:
        """Marks tensors whose whole name matches the regular expression as known and unused."""
        self._left = {name for name in self._left if not re.fullmatch(pattern, name)}

    def finish(self) -> None:
        """Raises CheckpointError if tensors are left that nobody took or skipped."""
        if self._left:
            names = ", ".join(sorted(self._left)[:8])
            more = f" and {len(self._left) - 8} more" if len(self._left) > 8 else ""
            raise CheckpointError(f"{self.path.name}: unknown tensor {names}{more}")
