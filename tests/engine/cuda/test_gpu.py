"""GPUs that the kernels don't run on are refused in words that help."""

from __future__ import annotations

import pytest
import torch

from engine.api import EngineError
from engine.cuda import gpu


def refusal(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> str:
    monkeypatch.setattr(gpu, "find_gpu", lambda device: gpu.Gpu("GPU X", capability))
    with pytest.raises(EngineError) as refused:
        gpu.check_gpu(torch.device("cuda:0"))
    return str(refused.value)


@pytest.mark.parametrize("capability", [(7, 5), (8, 9)])
def test_too_old(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    said = refusal(monkeypatch, capability)
    major, minor = capability
    assert f"cuda:0 is GPU X of compute capability {major}.{minor}" in said
    assert "need 9.0" in said
    assert "--device cpu" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="this PyTorch can use the GPU")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_a_pytorch_that_cant_use_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    said = refusal(monkeypatch, capability)
    assert f"the installed PyTorch {torch.__version__} can't use" in said
    assert "need 9.0" not in said
    assert "--device cpu" in said
