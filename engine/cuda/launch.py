"""How kernels are launched."""

from __future__ import annotations

import os
from typing import Any

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run in Triton's interpreter, on CPU tensors: for tests."""


def chained(on: bool) -> dict[str, Any]:
    """Launch options of a kernel that may start while the one before it ends.

    That is programmatic dependent launch: the kernel calls `gdc_wait` before it reads what earlier
    kernels wrote. Off where there is no GPU.
    """
    return {"PDL": True, "launch_pdl": True} if on and not INTERPRETED else {"PDL": False}
