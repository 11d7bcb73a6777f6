from pathlib import Path

import pytest
import torch
from lm_models import GOLDENS, TINY, codes, fused, golden_config, listen, load, tensors, tiny
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import CheckpointError
from engine.lm.config import LMConfig
from engine.lm.model import RQTransformer
from engine.rows import Rows
from engine.sampling import GREEDY

WIDE = replace(TINY, dep_q=16)


def tokens(lm: RQTransformer, frames: int = 12) -> Tensor:
    state = lm.state(1)
    state.set_sampling(0, GREEDY)
    return listen(lm, state, 0, codes(frames))


def test_the_model_s_tokens_vary() -> None:
    """Or else equal tokens would say nothing below."""
    made = tokens(tiny(), 30)[2:]
    assert min(len(channel.unique()) for channel in made.T) > 3


@pytest.mark.parametrize("config", [TINY, WIDE])
def test_split_and_fused_projections_are_the_same(config: LMConfig) -> None:
    split = tensors(config)
    stacked = fused(split)
    assert "depformer.layers.0.self_attn.out_proj.weight" in stacked
    assert torch.equal(tokens(load(config, split)), tokens(load(config, stacked)))


@pytest.mark.parametrize("stack", [False, True])
def test_only_the_steps_that_serving_runs_are_needed(stack: bool) -> None:
    whole, narrow = tensors(WIDE), tensors(TINY, seed=1)
    half = {name: whole[name] for name in narrow}
    form = fused if stack else dict
    expected = tokens(load(WIDE, form(whole)))
    assert torch.equal(tokens(load(WIDE, form(half))), expected)
    assert torch.equal(tokens(load(TINY, form(half))), expected)


def test_shared_weights_equal_the_same_weights_repeated() -> None:
    shared = replace(TINY, depformer_weights_per_step_schedule=(0, 0, 0, 1, 1, 1, 1, 1))
    made = tensors(shared)
    repeated = {
        name: tensor
        for name, tensor in made.items()
        if not any(part in name for part in ("depformer_in.", "_projs.", ".gating."))
        or name.startswith("transformer")
    }
    for name in set(made) - set(repeated):
        for step, source in enumerate(shared.schedule):
            old = {
                "depformer_in": f"depformer_in.{source}.",
                "_projs": f"_projs.{source}.",
                "gating": f"gating.{source}.",
            }
            for kind, part in old.items():
                if part in name:
                    new = part.replace(str(source), str(step))
                    repeated[name.replace(part, new)] = made[name]
                    assert kind in name
    assert torch.equal(tokens(load(shared, made)), tokens(load(TINY, repeated)))
    assert torch.equal(tokens(load(shared, fused(made))), tokens(load(TINY, repeated)))
    assert load(shared, made).weights.nbytes < load(TINY, repeated).weights.nbytes


def test_a_schedule_s_later_weights_are_skipped() -> None:
    config = replace(WIDE, depformer_weights_per_step_schedule=(*(0, 1) * 4, *(2, 3) * 4))
    made = tensors(config)
    expected = tokens(load(config, made))
    assert torch.equal(tokens(load(config, fused(made))), expected)
    del made["depformer.layers.1.gating.1.linear_in.weight"]
    with pytest.raises(CheckpointError, match=r"gating\.1\.linear_in"):
        load(config, made)


def test_low_rank_embeddings_equal_their_product() -> None:
    low = replace(TINY, depformer_low_rank_embeddings=4)
    made = tensors(low)
    whole = dict(made)
    for name in [name for name in made if name.endswith(".low_rank.weight")]:
        stem = name.removesuffix(".low_rank.weight")
        whole[f"{stem}.weight"] = made[f"{stem}.weight"] @ whole.pop(name).T
    assert torch.equal(tokens(load(low, made)), tokens(load(TINY, whole)))


class GreedyWitness:
    """Stands where the sampling parameters are: draws greedily, and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def draw(self, rows: Rows, calls: Tensor) -> "GreedyWitness":
        return self

    def text(self, logits: Tensor) -> Tensor:
        self.logits.append(logits[0])
        return logits.argmax(-1)

    def audio(self, book: int, logits: Tensor) -> Tensor:
        return self.text(logits)


def first_call(config: LMConfig, made: dict[str, Tensor]) -> list[Tensor]:
    """The logits of a greedy session's call 0, from a split checkpoint, in float64."""
    weights = {name.removesuffix(".weight"): tensor.double() for name, tensor in made.items()}

    def norm(name: str, x: Tensor) -> Tensor:
        return x * weights[f"{name}.alpha"].flatten() / (x.square().mean() + 1e-8).sqrt()

    def embed(name: str, token: int) -> Tensor:
        vector = weights[name][token]
        low_rank = weights.get(f"{name}.low_rank")
        return vector if low_rank is None else low_rank @ vector

    def layer(
        name: str, part: int, gating: str, x: Tensor, past: list[Tensor], heads: int
    ) -> Tensor:
        past.append(weights[f"{name}.self_attn.in_projs.{part}"] @ norm(f"{name}.norm1", x))
        query, keys, values = torch.stack(past).unflatten(1, (3, heads, -1)).unbind(1)
        scores = torch.einsum("hd,phd->hp", query[-1], keys) / query.shape[-1] ** 0.5
        heard = torch.einsum("hp,phd->hd", scores.softmax(-1), values).flatten()
        x = x + weights[f"{name}.self_attn.out_projs.{part}"] @ heard
        both = weights[f"{name}.{gating}.linear_in"] @ norm(f"{name}.norm2", x)
        passed, gated = both.chunk(2)
        return x + weights[f"{name}.{gating}.linear_out"] @ (passed * passed.sigmoid() * gated)

    x = embed("text_emb", config.text_card)
    for book in range(config.n_q):
        x = x + embed(f"emb.{book}", config.card)
    for index in range(config.num_layers):
        # At position 0 a rotation is none.
        x = layer(f"transformer.layers.{index}", 0, "gating", x, [], config.num_heads)
    h = norm("out_norm", x)
    logits = [weights["text_linear"] @ h]
    pasts: list[list[Tensor]] = [[] for _ in range(config.depformer_num_layers)]
    for book in range(config.books):
        part = config.schedule[book]
        name = f"depformer_emb.{book - 1}" if book else "depformer_text_emb"
        x = weights[f"depformer_in.{part}"] @ h + embed(name, int(logits[-1].argmax()))
        for index, past in enumerate(pasts):
            name = f"depformer.layers.{index}"
            x = layer(name, part, f"gating.{part}", x, past, config.depformer_num_heads)
        if config.depformer_norm is not None:
            x = norm(f"depformer_norms.{book}", x)
        logits.append(weights[f"linears.{book}"] @ x)
    return logits


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dep_q": 16},
        {"depformer_norm": "rms_norm_f32"},
        {"depformer_low_rank_embeddings": 4},
        {"depformer_weights_per_step_schedule": (0, 1, 2, 2, 2, 1, 0, 3)},
    ],
)
def test_first_call_equals_the_formulas(options: dict[str, object], seed: int) -> None:
    config = replace(TINY, **options)
    made = tensors(config, seed)
    lm = load(config, made)
    state, witness = lm.state(1), GreedyWitness()
    state.sampling = witness
    lm.step(state, Rows([0]), codes(1))
    expected = first_call(config, made)
    for got, logits in zip(witness.logits, expected, strict=True):
        torch.testing.assert_close(got.double(), logits, atol=1e-4, rtol=1e-4)
    made_tokens = state.grid.tokens[0, :9, 1].tolist()
    assert made_tokens == [int(logits.argmax()) for logits in expected]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, dict) for name in tensors(TINY)),
        *((name, fused) for name in fused(tensors(TINY)) if "attn" in name),
    ],
)
def test_every_missing_tensor_is_named(name: str, form: type) -> None:
    made = form(tensors(TINY))
    del made[name]
    expected = name
    if form is fused:
        expected = name.replace("_proj_weight", "_projs.0.weight").replace("_proj.", "_projs.0.")
    with pytest.raises(CheckpointError, match=f"missing tensor {expected.replace('.', '[.]')}"):
        load(TINY, made)


@pytest.mark.parametrize("name", list(fused(tensors(TINY))))
def test_every_misshapen_tensor_is_named(name: str) -> None:
    made = fused(tensors(TINY))
    made[name] = torch.zeros(3, 1, 5)
    with pytest.raises(CheckpointError, match=rf"{name.replace('.', '[.]')} is \[3, 1, 5\]"):
        load(TINY, made)


@pytest.mark.parametrize(
    "name",
    [
        "emb.16.weight",
        "depformer_in.8.weight",
        "linears.8.weight",
        "depformer_emb.7.weight",
        "depformer.layers.2.norm1.alpha",
        "transformer.layers.0.self_attn.in_proj_bias",
        "depformer_text_emb.low_rank.weight",
    ],
)
def test_every_unknown_tensor_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"unknown tensor {name.replace('.', '[.]')}"):
        load(TINY, tensors(TINY) | {name: torch.zeros(2)})


def test_later_depformer_steps_are_known_but_not_later_ones_still() -> None:
    made = tensors(WIDE) | {"linears.16.weight": torch.zeros(24, 8)}
    with pytest.raises(CheckpointError, match=r"unknown tensor linears\.16\.weight"):
        load(WIDE, made)


def test_half_precision_keeps_the_golden_s_own_weights(tmp_path: Path) -> None:
    """A norm's scale is folded in fp32: bf16 weights are then rounded once."""
    path = GOLDENS / "moshi-tiny/model.safetensors"
    lm = RQTransformer.load(path, golden_config("moshi-tiny"), dtype=torch.bfloat16)
    published = load_file(path)
    assert lm.weights.embedding.dtype == torch.bfloat16
    out = published["transformer.layers.0.self_attn.out_projs.0.weight"]
    assert torch.equal(lm.weights.layers[0].out, out.t())
    scale = published["out_norm.alpha"].float().flatten() * 32**0.5
    head = (published["text_linear.weight"].float() * scale).t().bfloat16()
    assert torch.equal(lm.weights.text_head, head)
    made = tokens(lm, 6)
    assert made[2:].min() >= 0


def test_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        RQTransformer.load(tmp_path / "model.safetensors", TINY)
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor text_emb\.weight"):
        RQTransformer.load(tmp_path / "other.safetensors", TINY)
