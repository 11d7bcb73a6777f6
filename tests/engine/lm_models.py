"""Small language models for tests: the goldens, and random ones written as checkpoints."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.model import LMStep, RQTransformer
from engine.lm.prompt import PromptCodes
from engine.rows import Rows

GOLDENS = Path(__file__).parents[1] / "goldens"

TINY = LMConfig(
    dim=16,
    num_heads=2,
    num_layers=2,
    hidden_scale=4.125,
    context=6,
    card=24,
    text_card=20,
    n_q=16,
    dep_q=8,
    delays=(0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1),
    depformer_dim=8,
    depformer_num_heads=2,
    depformer_num_layers=2,
    prompt=PromptCodes(tuple(range(8)), tuple(range(8, 16)), 2),
)


def golden_config(name: str) -> LMConfig:
    return LMConfig.from_json(json.loads((GOLDENS / name / "config.json").read_text()))


@cache
def golden(name: str) -> tuple[RQTransformer, dict[str, Tensor]]:
    lm = RQTransformer.load(GOLDENS / name / "model.safetensors", golden_config(name))
    with np.load(GOLDENS / name / "case.npz") as case:
        return lm, {key: torch.from_numpy(case[key]) for key in case}


def tensors(config: LMConfig, seed: int = 0) -> dict[str, Tensor]:
    """A random checkpoint in the split form, loud enough that its tokens vary."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        noise = torch.randn(rows, columns, generator=generator)
        made[f"{name}.weight"] = noise * gain / columns**0.5

    def alpha(name: str, dim: int) -> None:
        made[f"{name}.alpha"] = 1 + 0.1 * torch.randn(1, 1, dim, generator=generator)

    def embedding(name: str, rows: int, dim: int) -> None:
        rank = config.depformer_low_rank_embeddings
        if rank is None or not name.startswith("depformer"):
            made[f"{name}.weight"] = torch.randn(rows, dim, generator=generator)
        else:
            made[f"{name}.weight"] = torch.randn(rows, rank, generator=generator)
            matrix(f"{name}.low_rank", dim, rank)

    def layer(name: str, dim: int, hidden: int, parts: range, gating: Callable[[int], str]) -> None:
        alpha(f"{name}.norm1", dim)
        alpha(f"{name}.norm2", dim)
        for part in parts:
            matrix(f"{name}.self_attn.in_projs.{part}", 3 * dim, dim)
            matrix(f"{name}.self_attn.out_projs.{part}", dim, dim)
            matrix(f"{name}.{gating(part)}.linear_in", 2 * hidden, dim)
            matrix(f"{name}.{gating(part)}.linear_out", dim, hidden)

    dim, depth = config.dim, config.depformer_dim
    embedding("text_emb", config.text_card + 1, dim)
    for book in range(config.n_q):
        embedding(f"emb.{book}", config.card + 1, dim)
    for index in range(config.num_layers):
        layer(f"transformer.layers.{index}", dim, config.hidden, range(1), lambda _: "gating")
    alpha("out_norm", dim)
    matrix("text_linear", config.text_card, dim, 3)
    parts = range(max(config.schedule) + 1)
    for index in range(config.depformer_num_layers):
        name = f"depformer.layers.{index}"
        layer(name, depth, config.depformer_hidden, parts, lambda part: f"gating.{part}")
    for part in parts:
        matrix(f"depformer_in.{part}", depth, dim)
    embedding("depformer_text_emb", config.text_card + 1, depth)
    for book in range(config.dep_q):
        if book:
            embedding(f"depformer_emb.{book - 1}", config.card + 1, depth)
        if config.depformer_norm is not None:
            alpha(f"depformer_norms.{book}", depth)
        matrix(f"linears.{book}", config.card, depth, 3)
    return made


def fused(split: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same checkpoint with its attention projections stacked."""
    made = dict(split)
    names = {name.split("_projs.")[0] for name in split if "_projs." in name}
    for name in names:
        count = sum(other.startswith(f"{name}_projs.") for other in split)
        parts = [made.pop(f"{name}_projs.{part}.weight") for part in range(count)]
        suffix = "_proj_weight" if name.endswith(".in") else "_proj.weight"
        made[name + suffix] = torch.cat(parts)
    return made


def load(config: LMConfig, made: Mapping[str, Tensor]) -> RQTransformer:
    """Through a file, as always."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({name: tensor.clone() for name, tensor in made.items()}, path)
        return RQTransformer.load(path, config)


@cache
def tiny(context: int = 6) -> RQTransformer:
    config = replace(TINY, context=context)
    return load(config, tensors(config))


def codes(frames: int, seed: int = 0, card: int = TINY.card) -> Tensor:
    """A caller's frames: [frames, 8]."""
    return torch.randint(card, (frames, 8), generator=torch.Generator().manual_seed(seed))


def frame(step: LMStep) -> Tensor:
    """[n, 9]"""
    return torch.cat((step.text[:, None], step.codes), dim=1)


def listen(lm: RQTransformer, state: object, row: int, user: Tensor) -> Tensor:
    """What one row makes of a caller's frames, stepped alone by copy: [frames, 9]."""
    rows = Rows([row], copy=True)
    return torch.cat([frame(lm.step(state, rows, codes[None])) for codes in user])
