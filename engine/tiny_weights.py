"""Random weights of a tiny model, by the names and shapes of the published checkpoints.

Random, but not any: gains of about one keep a signal alive on its way through the codec, and a
direction that all text embeddings share keeps the text at rest in most frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.mimi.config import MimiConfig

Weights = dict[str, Tensor]

LAST_CONV = "decoder.model.14.conv.conv"
"""The codec's last layer, of four ratios."""

_FOCUS = 2.0
"""So sharp is attention that what was said long ago, a prompt too, changes what is said now."""
_HEARD = 0.5
"""Size of what the model hears, beside what it says itself: silence, always the same, would else
settle how much it talks."""
_WORD = 3.0
"""Standard deviation of a word's logit: large beside the noise of sampling, so that greedy and
sampled sessions speak about equally often."""
_REST = 7.0
"""The resting token's logit; the highest word of a frame is ahead of it now and then."""


class _Normal:
    """Normal tensors from one seeded generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self._generator).mul_(std)

    def linear(self, outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
        """[outputs, inputs] that keeps the size of what goes through it, times `gain`."""
        return self(outputs, inputs, std=gain / math.sqrt(inputs))

    def conv(self, *shape: int, gain: float = 1.4) -> Tensor:
        """[outputs, inputs, kernel]; the gain makes up for an ELU in front."""
        return self(*shape, std=gain / math.sqrt(shape[1] * shape[2]))


def lm_weights(config: LMConfig, words: Iterable[int], seed: int) -> Weights:
    """A language model's tensors, fused projections, float32. words: the tokens it may say."""
    normal = _Normal(seed)
    dim, depth, steps = config.dim, config.depformer_dim, config.dep_q
    weights = _text(normal, config, words)
    weights["out_norm.alpha"] = torch.ones(1, 1, dim)
    weights["depformer_text_emb.weight"] = normal(config.text_card + 1, depth)
    for book in range(config.n_q):
        weights[f"emb.{book}.weight"] = normal(
            config.card + 1, dim, std=1 if book < config.books else _HEARD
        )
    for step in range(steps - 1):
        weights[f"depformer_emb.{step}.weight"] = normal(config.card + 1, depth)
    for layer in range(config.num_layers):
        name = f"transformer.layers.{layer}."
        weights |= _attention(normal, name, dim, 1, _FOCUS)
        weights |= _gating(normal, name + "gating.", dim, config.hidden)
    for layer in range(config.depformer_num_layers):
        name = f"depformer.layers.{layer}."
        weights |= _attention(normal, name, depth, steps)
        for step in range(steps):
            weights |= _gating(normal, f"{name}gating.{step}.", depth, config.depformer_hidden)
    for step in range(steps):
        weights[f"depformer_in.{step}.weight"] = normal.linear(depth, dim)
        weights[f"linears.{step}.weight"] = normal.linear(config.card, depth)
    for name, weight in weights.items():
        if name.startswith("emb."):
            weight[:, 0] = 0
        elif name.startswith("transformer.") and name.endswith(("out_proj.weight", "_out.weight")):
            weight[0] = 0
    return weights


def _text(normal: _Normal, config: LMConfig, words: Iterable[int]) -> Weights:
    """Text embeddings, and the head that reads them.

    Each input has one text embedding and nothing else writes channel 0, so that channel tells the
    head nothing but how large the hidden state is, and the resting token stands on it alone.
    Tokens that are no words are never drawn.
    """
    embeddings = normal(config.text_card + 1, config.dim)
    embeddings[:, 0] = 2 * math.sqrt(config.dim)
    # About the root mean square of a hidden state before its norm.
    size = math.sqrt(4 + 1 + config.books * (1 + _HEARD**2) + 2 * config.num_layers)
    per_unit = size / (2 * math.sqrt(config.dim))
    head = torch.zeros(config.text_card, config.dim)
    head[:, 0] = -10 * _REST * per_unit
    head[config.existing_text_padding_id, 0] = _REST * per_unit
    for word in words:
        head[word] = normal(config.dim, std=_WORD / math.sqrt(config.dim))
        head[word, 0] = 0
    return {"text_emb.weight": embeddings, "text_linear.weight": head}


def _attention(normal: _Normal, name: str, dim: int, steps: int, focus: float = 1) -> Weights:
    """focus: factor of queries and of keys. The larger, the fewer positions a query attends to."""
    projection = normal.linear(3 * dim * steps, dim)
    projection.view(steps, 3, dim, dim)[:, :2] *= focus
    return {
        f"{name}norm1.alpha": torch.ones(1, 1, dim),
        f"{name}norm2.alpha": torch.ones(1, 1, dim),
        f"{name}self_attn.in_proj_weight": projection,
        f"{name}self_attn.out_proj.weight": normal.linear(steps * dim, dim),
    }


def _gating(normal: _Normal, name: str, dim: int, hidden: int) -> Weights:
    return {
        f"{name}linear_in.weight": normal.linear(2 * hidden, dim),
        f"{name}linear_out.weight": normal.linear(dim, hidden),
    }


def mimi_weights(config: MimiConfig, seed: int) -> Weights:
    """A codec's tensors, float32."""
    normal = _Normal(seed)
    return _encoder(normal, config) | _decoder(normal, config) | _quantizer(normal, config)


def _encoder(normal: _Normal, config: MimiConfig) -> Weights:
    seanet, channels, layer = config.seanet, config.seanet.n_filters, 1
    # Speech has a root mean square of about 0.05.
    weights = _conv(normal, "encoder.model.0.conv.conv", channels, 1, seanet.kernel_size, gain=20)
    for ratio in reversed(seanet.ratios):
        weights |= _block(normal, f"encoder.model.{layer}", channels, config)
        name = f"encoder.model.{layer + 2}.conv.conv"
        weights |= _conv(normal, name, 2 * channels, channels, 2 * ratio)
        channels, layer = 2 * channels, layer + 3
    name, dim = f"encoder.model.{layer + 1}.conv.conv", seanet.dimension
    weights |= _conv(normal, name, dim, channels, seanet.last_kernel_size)
    weights["downsample.conv.conv.conv.weight"] = normal.conv(dim, dim, 2 * config.latents, gain=1)
    return weights | _transformer(normal, "encoder_transformer", config)


def _decoder(normal: _Normal, config: MimiConfig) -> Weights:
    seanet, dim, layer = config.seanet, config.seanet.dimension, 1
    channels = seanet.decoder << len(seanet.ratios)
    weights = _conv(normal, "decoder.model.0.conv.conv", channels, dim, seanet.kernel_size, gain=1)
    weights["upsample.convtr.convtr.convtr.weight"] = normal(dim, 1, 2 * config.latents, std=0.7)
    for ratio in seanet.ratios:
        # [inputs, outputs, kernel]; two of the kernel's strides meet in each sample.
        weight = normal(channels, channels // 2, 2 * ratio, std=1.4 / math.sqrt(2 * channels))
        channels //= 2
        name = f"decoder.model.{layer + 1}.convtr.convtr."
        weights |= {f"{name}weight": weight, f"{name}bias": torch.zeros(channels)}
        weights |= _block(normal, f"decoder.model.{layer + 2}", channels, config)
        layer += 3
    name = f"decoder.model.{layer + 1}.conv.conv"
    weights |= _conv(normal, name, 1, channels, seanet.last_kernel_size)
    return weights | _transformer(normal, "decoder_transformer", config)


def _block(normal: _Normal, name: str, channels: int, config: MimiConfig) -> Weights:
    seanet = config.seanet
    inner, kernel = channels // seanet.compress, seanet.residual_kernel_size
    first = _conv(normal, f"{name}.block.1.conv.conv", inner, channels, kernel)
    return first | _conv(normal, f"{name}.block.3.conv.conv", channels, inner, 1, gain=0.5)


def _conv(normal: _Normal, name: str, *shape: int, gain: float = 1.4) -> Weights:
    """shape: outputs, inputs, kernel."""
    return {
        f"{name}.weight": normal.conv(*shape, gain=gain),
        f"{name}.bias": torch.zeros(shape[0]),
    }


def _transformer(normal: _Normal, side: str, config: MimiConfig) -> Weights:
    transformer, dim = config.transformer, config.transformer.d_model
    weights: Weights = {}
    for layer in range(transformer.num_layers):
        name = f"{side}.transformer.layers.{layer}."
        for part in ("1", "2"):
            weights |= {
                f"{name}norm{part}.weight": torch.ones(dim),
                f"{name}norm{part}.bias": torch.zeros(dim),
                f"{name}layer_scale_{part}.scale": torch.full((dim,), 0.3),
            }
        weights |= {
            f"{name}self_attn.in_proj_weight": normal.linear(3 * dim, dim),
            f"{name}self_attn.out_proj.weight": normal.linear(dim, dim),
            f"{name}linear1.weight": normal.linear(transformer.dim_feedforward, dim),
            f"{name}linear2.weight": normal.linear(dim, transformer.dim_feedforward),
        }
    return weights


def _quantizer(normal: _Normal, config: MimiConfig) -> Weights:
    quantizer, dim = config.quantizer, config.seanet.dimension
    weights: Weights = {}
    for part, books in (("rvq_first", 1), ("rvq_rest", quantizer.n_q - 1)):
        name, inner = f"quantizer.{part}.", quantizer.dimension
        weights[f"{name}input_proj.weight"] = normal.linear(inner, dim)[..., None]
        weights[f"{name}output_proj.weight"] = normal.linear(dim, inner)[..., None]
        for book in range(books):
            codebook = f"{name}vq.layers.{book}._codebook."
            weights |= {
                f"{codebook}_initialized": torch.ones(1),
                f"{codebook}cluster_usage": torch.ones(quantizer.bins),
                # Each book refines what the one before left.
                f"{codebook}embedding_sum": normal(quantizer.bins, inner, std=0.8**book),
            }
    return weights
