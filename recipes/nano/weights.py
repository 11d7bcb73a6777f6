"""Half-precision checkpoints in parts of at most 15 MB, small enough to carry anywhere."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PART_BYTES = 15_000_000


def save_parts(state: dict[str, Tensor], folder: Path, name: str) -> None:
    """Write `folder/name-0.safetensors`, `-1`, ... ; floats become fp16."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in state.items():
        half = value.half() if value.is_floating_point() else value
        half = half.detach().cpu().contiguous()
        if parts[-1] and size + half.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = half
        size += half.nbytes
    for i, part in enumerate(parts):
        save_file(part, folder / f"{name}-{i}.safetensors")


def load_parts(folder: Path, name: str, device: str = "cpu") -> dict[str, Tensor]:
    """Read all parts back, floats in fp32."""
    state: dict[str, Tensor] = {}
    files = sorted(folder.glob(f"{name}-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}/{name}-*.safetensors")
    for file in files:
        for key, value in load_file(file, device=device).items():
            state[key] = value.float() if value.dtype == torch.float16 else value
    return state
