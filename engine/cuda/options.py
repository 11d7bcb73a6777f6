"""What an operator may choose of the engine on a GPU."""

from __future__ import annotations

from typing import Literal

import msgspec


class CudaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How keys, values and weights are kept, and for how long a session remembers."""

    context: int | None = None
    """Frames that a session remembers. None: as many as the model was made for."""
    kv: Literal["bf16", "fp8"] = "bf16"
    """Keys and values. "fp8" halves a session's memory; its scales can't overflow."""
    weights: Literal["bf16", "fp8"] = "bf16"
    """The temporal transformer's matrices."""
    fixed: bool = False
    """A session's output is the same to the last bit, whoever else is in the batch."""
