"""Skips a module of tests where Triton's interpreter can't run."""

from __future__ import annotations

import numpy as np
import pytest

triton = pytest.importorskip("triton")

if (
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
    and np.lib.NumpyVersion(np.__version__) >= "2.4.0"
):
    pytest.skip("this Triton's interpreter needs numpy below 2.4", allow_module_level=True)
