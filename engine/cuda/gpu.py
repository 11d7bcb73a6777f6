"""Whether the kernels run on a GPU."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from engine.api import EngineError

_CAPABILITY: Final = (9, 0)
"""Of Hopper: chained launches (`engine.cuda.launch`) and FP8 need it."""
_INSTEAD: Final = "run the model on the CPU instead with --device cpu"


class Gpu(NamedTuple):
    """What a GPU says of itself."""

    name: str
    capability: tuple[int, int]
    """Major and minor."""


def find_gpu(device: torch.device) -> Gpu:
    """The GPU at a CUDA device."""
    return Gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


def check_gpu(device: torch.device) -> None:
    """Raises EngineError for a GPU that is too old, or that the installed PyTorch can't use."""
    gpu = find_gpu(device)
    if gpu.capability < _CAPABILITY:
        raise EngineError(
            f"{device} is {gpu.name} of compute capability {_dotted(gpu.capability)}, but models "
            f"on CUDA need {_dotted(_CAPABILITY)} or newer: use another, or {_INSTEAD}"
        )
    try:
        torch.ones(1, device=device).neg_().cpu()
    except (RuntimeError, AssertionError) as error:  # The latter without any CUDA.
        why = str(error).partition("\n")[0]
        raise EngineError(
            f"{device} is {gpu.name} of compute capability {_dotted(gpu.capability)}, which the "
            f"installed PyTorch {torch.__version__} can't use ({why}): if it has no kernels for "
            f"it, install a build that has, or {_INSTEAD}"
        ) from error


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
