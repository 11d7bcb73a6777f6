"""Tiny models' directories, written once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

LATE_STEPS = re.compile(r"(depformer_in|linears|gating)\.(8|9|1\d)\.|depformer_emb\.([7-9]|1\d)\.")
"""Tensors of depformer steps past the eighth."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes voices and a persona. Not to be changed."""
    from engine.tiny import write_tiny

    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(path)
    return path


@pytest.fixture
def tiny_copy(tiny: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture(scope="session")
def moshi(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without prompts, with eight depformer steps. Not to be changed."""
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("models") / "moshi"))
    shutil.rmtree(path / "voices")
    weights = load_file(path / "model.safetensors")
    for name in list(weights):
        if re.search(
            r"(depformer_in|linears|gating)\.(8|9|1\d)\.|depformer_emb\.([7-9]|1\d)\.", name
        ):
            del weights[name]
        elif name.startswith("depformer.layers.") and "self_attn" in name:
            weights[name] = weights[name].chunk(2)[0].clone()
    save_file(weights, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    del config["prompt"], config["default_voice"]
    config |= {"name": "moshi", "model_type": "moshi", "dep_q": 8}
    (path / "config.json").write_text(json.dumps(config))
    return path
