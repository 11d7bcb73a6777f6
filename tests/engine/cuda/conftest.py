"""Kernels run in Triton's interpreter here: slow, but without a GPU and exact."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
