"""Mimi's sizes, named as in Kyutai's configs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated

import msgspec

from engine.checkpoint import CheckpointError

Size = Annotated[int, msgspec.Meta(gt=0)]


def _support(section: msgspec.Struct, **only: object) -> None:
    """Raises ValueError for an option of `section` that has another value than its only one."""
    for name, value in only.items():
        if getattr(section, name) != value:
            raise ValueError(f"{name} {getattr(section, name)!r} is unknown, only {value!r} is")


class SeanetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The convolutional encoder and decoder."""

    dimension: Size
    """Channels of a latent."""
    n_filters: Size
    """Channels next to the waveform; they double with every ratio."""
    decoder_n_filters: Size | None = None
    """The same for the decoder, if it differs."""
    ratios: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1)]
    """Strides, in the decoder's order."""
    kernel_size: Size
    residual_kernel_size: Size
    last_kernel_size: Size
    compress: Size
    """A residual block's inner layer has channels / compress."""
    n_residual_layers: int = 1
    dilation_base: int = 2
    """Without effect: the first dilation is 1, and there is one residual layer."""
    channels: int = 1
    causal: bool = True
    true_skip: bool = True
    activation: str = "ELU"
    norm: str = "none"
    disable_norm_outer_blocks: int = 0
    pad_mode: str = "constant"

    def __post_init__(self) -> None:
        _support(
            self,
            n_residual_layers=1,
            channels=1,
            causal=True,
            true_skip=True,
            activation="ELU",
            norm="none",
            disable_norm_outer_blocks=0,
            pad_mode="constant",
        )
        for name, filters in (("n_filters", self.n_filters), ("decoder_n_filters", self.decoder)):
            if filters % self.compress:
                raise ValueError(f"{name} {filters} isn't a multiple of compress {self.compress}")

    @property
    def decoder(self) -> int:
        """The decoder's channels next to the waveform."""
        return self.decoder_n_filters or self.n_filters


class TransformerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The encoder's and the decoder's transformer."""

    d_model: Size
    num_heads: Size
    num_layers: Size
    dim_feedforward: Size
    context: Size
    """Positions that a query can see."""
    max_period: float
    layer_scale: float
    """The scales' value before training; the trained ones are in the file."""
    input_dimension: Size
    output_dimensions: tuple[Size, ...]
    causal: bool = True
    conv_layout: bool = True
    gating: str = "none"
    norm: str = "layer_norm"
    positional_embedding: str = "rope"

    def __post_init__(self) -> None:
        _support(
            self,
            input_dimension=self.d_model,
            output_dimensions=(self.d_model,),
            causal=True,
            conv_layout=True,
            gating="none",
            norm="layer_norm",
            positional_embedding="rope",
        )
        if self.d_model % (2 * self.num_heads):
            raise ValueError(f"d_model {self.d_model} isn't num_heads {self.num_heads} even parts")

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.d_model // self.num_heads


class QuantizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The split residual vector quantiser."""

    dimension: Size
    """Channels in which codes are chosen."""
    n_q: Size
    """Books in the file."""
    bins: Size
    """Entries of a book."""
    input_dimension: Size
    output_dimension: Size


class MimiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of Mimi."""

    sample_rate: Size
    frame_rate: float
    """Frames a second."""
    channels: int = 1
    seanet: SeanetConfig
    quantizer: QuantizerConfig
    transformer: TransformerConfig

    def __post_init__(self) -> None:
        _support(self, channels=1)
        dimension = self.seanet.dimension
        for name, size in (
            ("transformer.d_model", self.transformer.d_model),
            ("quantizer.input_dimension", self.quantizer.input_dimension),
            ("quantizer.output_dimension", self.quantizer.output_dimension),
        ):
            if size != dimension:
                raise ValueError(f"{name} {size} isn't seanet.dimension {dimension}")
        hop = prod(self.seanet.ratios)
        if (
            self.frame_rate <= 0
            or self.frame_size * self.frame_rate != self.sample_rate
            or self.frame_size % hop
            or not 1 < self.latents <= self.transformer.context
        ):
            raise ValueError(
                f"frame_rate {self.frame_rate:g} doesn't give frames of two or more latents"
                f" of {hop} samples at sample_rate {self.sample_rate}"
            )

    @property
    def frame_size(self) -> int:
        """Samples of one frame."""
        return round(self.sample_rate / self.frame_rate)

    @property
    def latents(self) -> int:
        """Latents of one frame before the encoder's last stride: 2 at 25 Hz."""
        return self.frame_size // prod(self.seanet.ratios)

    @classmethod
    def from_json(cls, options: Mapping[str, object]) -> MimiConfig:
        """Reads a parsed config.json.

        Raises CheckpointError, which names the option, for an unknown or missing one and for a
        value that isn't supported.
        """
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"Mimi config: {error}") from error


MIMI_24KHZ = MimiConfig(
    sample_rate=24000,
    frame_rate=12.5,
    seanet=SeanetConfig(
        dimension=512,
        n_filters=64,
        ratios=(8, 6, 5, 4),
        kernel_size=7,
        residual_kernel_size=3,
        last_kernel_size=3,
        compress=2,
    ),
    quantizer=QuantizerConfig(
        dimension=256, n_q=32, bins=2048, input_dimension=512, output_dimension=512
    ),
    transformer=TransformerConfig(
        d_model=512,
        num_heads=8,
        num_layers=8,
        dim_feedforward=2048,
        context=250,
        max_period=10000,
        layer_scale=0.01,
        input_dimension=512,
        output_dimensions=(512,),
    ),
)
"""The published Mimi: 24 kHz, 12.5 Hz (Défossez et al., arXiv:2410.00037)."""
