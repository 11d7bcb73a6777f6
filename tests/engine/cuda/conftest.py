"""Kernels run in Triton's interpreter here: slow, but without a GPU and exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a loaded machine the interpreter takes more than other tests may."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))
