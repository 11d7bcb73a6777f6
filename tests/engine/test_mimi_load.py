"""Reading codecs: every layout that exists, and every defect by name."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import CheckpointError
from engine.mimi.codec import Mimi
from engine.mimi.config import MIMI_24KHZ, MimiConfig
from engine.rows import Rows

GOLDEN = Path(__file__).parents[1] / "goldens" / "mimi-tiny"
OPTIONS = json.loads((GOLDEN / "config.json").read_text())
TENSORS = load_file(GOLDEN / "model.safetensors")
CASE = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / "case.npz").items()}


def changed(path: str, value: object) -> dict[str, object]:
    """The golden's options with the one at `path` changed, or without it for None."""
    options = copy.deepcopy(OPTIONS)
    *sections, name = path.split(".")
    section = options
    for key in sections:
        section = section[key]
    if value is None:
        del section[name]
    else:
        section[name] = value
    return options


@pytest.fixture
def load(tmp_path):
    def load(tensors: dict[str, Tensor], options: dict[str, object] = OPTIONS, **how) -> Mimi:
        path = tmp_path / "mimi.safetensors"
        save_file(tensors, path)
        return Mimi.load(path, MimiConfig.from_json(options), **how)

    return load


def hear(mimi: Mimi, frames: int = 3) -> tuple[Tensor, Tensor]:
    """Codes of the golden's first frames, and the sound of the golden's codes."""
    with torch.inference_mode():
        state, rows = mimi.state(1), Rows([0])
        pcm = CASE["pcm"].view(-1, 1, 1920)[:frames]
        codes = torch.cat([mimi.encode(state, rows, frame) for frame in pcm])
        known = CASE["codes"].t()[:frames, : mimi.books]
        return codes, torch.cat([mimi.decode(state, rows, code[None]) for code in known])


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy with the attention projections under their fused names."""
    names = {".in_projs.0.weight": ".in_proj_weight", ".out_projs.0.weight": ".out_proj.weight"}
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor.clone()
    return renamed


def test_fused_projections(load):
    tensors = fused(TENSORS)
    assert "encoder_transformer.transformer.layers.0.self_attn.in_proj_weight" in tensors
    for found, known in zip(hear(load(tensors)), hear(load(TENSORS)), strict=True):
        assert torch.equal(found, known)


def test_both_forms_of_a_projection_are_one_too_many(load):
    with pytest.raises(CheckpointError, match=r"unknown tensor .*in_proj_weight"):
        load(fused(TENSORS) | TENSORS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_file_is_upcast(load, dtype):
    half = {name: tensor.to(dtype) for name, tensor in TENSORS.items()}
    full = {name: tensor.float() for name, tensor in half.items()}
    for found, known in zip(hear(load(half)), hear(load(full)), strict=True):
        assert torch.equal(found, known)


def test_weights_in_half_precision(load):
    _, rough = hear(load(TENSORS, dtype=torch.bfloat16))
    known = CASE["decoded"].view(-1, 1920)[:3]
    assert rough.dtype == torch.float32
    assert (rough - known).square().mean() < 1e-3 * known.square().mean()


def test_fewer_books(load):
    codes, _ = hear(load(TENSORS, books=3))
    assert torch.equal(codes, CASE["codes"].t()[:3, :3])
    codes, sound = hear(load(TENSORS, books=1))
    assert torch.equal(codes, CASE["codes"].t()[:3, :1])
    assert sound.shape == (3, 1920)


def test_more_books_in_the_file(load):
    more = {
        name.replace("layers.6.", f"layers.{index}."): tensor.clone()
        for name, tensor in TENSORS.items()
        for index in (7, 8)
        if name.startswith("quantizer.rvq_rest.vq.layers.6.")
    }
    codes, _ = hear(load(TENSORS | more, changed("quantizer.n_q", 10)))
    assert torch.equal(codes, CASE["codes"].t()[:3])
    with pytest.raises(CheckpointError, match=r"unknown tensor quantizer\.rvq_rest\.vq\.layers\.8"):
        load(TENSORS | more, changed("quantizer.n_q", 9))


@pytest.mark.parametrize("books", [0, 9])
def test_books_that_there_are_not(load, books):
    with pytest.raises(CheckpointError, match=f"{books} books"):
        load(TENSORS, books=books)


def widened(name: str, tensor: Tensor) -> Tensor:
    """The decoder's tensor with each inner channel twice, which changes nothing in the sound."""
    sample = name.startswith("decoder.model.14.")
    latent = name.startswith("decoder.model.0.")
    if not name.startswith("decoder.model."):
        return tensor
    if tensor.dim() == 1:
        return tensor if sample else tensor.repeat(2)
    if latent:
        return tensor.repeat(2, 1, 1)
    return tensor.repeat(1 if sample else 2, 2, 1) / 2


def test_separate_decoder_size(load):
    options = changed("seanet.decoder_n_filters", 16)
    wide = {name: widened(name, tensor) for name, tensor in TENSORS.items()}
    codes, sound = hear(load(wide, options))
    assert torch.equal(codes, CASE["codes"].t()[:3])
    assert (sound - CASE["decoded"].view(-1, 1920)[:3]).abs().max() < 1e-5
    with pytest.raises(CheckpointError, match=r"decoder\.model\.0.* is \[128, 32, 7\], expected"):
        load(TENSORS, options)


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_a_tensor_that_is_missing_or_misshapen_is_named(load, name):
    if name.endswith("_initialized"):
        load({key: tensor for key, tensor in TENSORS.items() if key != name})
        return
    # A projection that is missing in its split form is asked for in its fused one.
    missing = next(iter(fused({name: TENSORS[name]})))
    with pytest.raises(CheckpointError) as error:
        load({key: tensor for key, tensor in TENSORS.items() if key != name})
    assert f"missing tensor {missing} " in str(error.value)
    with pytest.raises(CheckpointError) as error:
        load(TENSORS | {name: torch.zeros(*TENSORS[name].shape, 1)})
    assert f"tensor {name} is {[*TENSORS[name].shape, 1]}, expected" in str(error.value)


def test_an_unknown_tensor_is_named(load):
    with pytest.raises(CheckpointError, match=r"unknown tensor decoder\.model\.99\.weight"):
        load(TENSORS | {"decoder.model.99.weight": torch.zeros(1)})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("hop", 3, r"unknown field `hop`"),
        ("seanet.lstm", 2, r"unknown field `lstm` - at `\$\.seanet`"),
        ("transformer.kv_repeat", 2, r"unknown field `kv_repeat`"),
        ("quantizer.decay", 0.9, r"unknown field `decay`"),
        ("seanet.ratios", None, r"missing required field `ratios`"),
        ("transformer.context", None, r"missing required field `context`"),
        ("seanet.n_filters", "8", r"`\$\.seanet\.n_filters`"),
        ("seanet.n_filters", 0, r"`\$\.seanet\.n_filters`"),
        ("seanet.n_filters", 7, r"n_filters 7 isn't a multiple of compress 2"),
        ("seanet.decoder_n_filters", 9, r"decoder_n_filters 9 isn't a multiple"),
        ("seanet.ratios", [], r"`\$\.seanet\.ratios`"),
        ("seanet.norm", "weight_norm", r"norm 'weight_norm'.* only 'none'"),
        ("seanet.causal", False, r"causal False"),
        ("seanet.true_skip", False, r"true_skip False"),
        ("seanet.pad_mode", "reflect", r"pad_mode 'reflect'"),
        ("seanet.activation", "ReLU", r"activation 'ReLU'"),
        ("seanet.n_residual_layers", 3, r"n_residual_layers 3"),
        ("transformer.norm", "rms_norm", r"norm 'rms_norm'"),
        ("transformer.gating", "silu", r"gating 'silu'"),
        ("transformer.positional_embedding", "sin", r"positional_embedding 'sin'"),
        ("transformer.num_heads", 5, r"num_heads 5"),
        ("transformer.layer_scale", None, r"missing required field `layer_scale`"),
        ("transformer.input_dimension", 16, r"input_dimension 16"),
        ("transformer.output_dimensions", [32, 32], r"output_dimensions \(32, 32\)"),
        ("quantizer.input_dimension", 16, r"quantizer.input_dimension 16"),
        ("channels", 2, r"channels 2"),
        ("frame_rate", 25, r"frame_rate 25"),
        ("frame_rate", 0, r"frame_rate 0"),
        ("sample_rate", 22050, r"sample_rate 22050"),
    ],
)
def test_a_bad_option_is_named(path, value, message):
    with pytest.raises(CheckpointError, match=message):
        MimiConfig.from_json(changed(path, value))


def test_published_sizes():
    published = copy.deepcopy(OPTIONS)
    published["seanet"] |= {"dimension": 512, "n_filters": 64}
    published["quantizer"] = {
        "dimension": 256,
        "n_q": 32,
        "bins": 2048,
        "input_dimension": 512,
        "output_dimension": 512,
    }
    published["transformer"] |= {
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 8,
        "context": 250,
        "dim_feedforward": 2048,
        "input_dimension": 512,
        "output_dimensions": [512],
    }
    assert MimiConfig.from_json(published) == MIMI_24KHZ
    assert (MIMI_24KHZ.frame_size, MIMI_24KHZ.latents) == (1920, 2)
