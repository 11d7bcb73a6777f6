"""Mimi's two directions, frame by frame, for the slot rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import Checkpoint, CheckpointError
from engine.mimi.config import MimiConfig
from engine.mimi.conv import CausalConv
from engine.mimi.quantizer import Quantizer
from engine.mimi.seanet import SeanetDecoder, SeanetEncoder
from engine.mimi.transformer import Transformer, TransformerState
from engine.rows import Rows


@dataclass(frozen=True, slots=True)
class MimiState:
    """What Mimi remembers of each slot row; the directions are independent of each other."""

    encoder: Tensor
    """[slots, numbers], inputs of the encoder's convolutions."""
    encoder_transformer: TransformerState
    downsample: Tensor
    """[slots, latents * dimension], the last frame's latents."""
    upsample: Tensor
    """[slots, 1, dimension], the last frame's latent."""
    decoder_transformer: TransformerState
    decoder: Tensor
    """[slots, numbers], inputs of the decoder's convolutions."""

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return (self.encoder, self.downsample, self.upsample, self.decoder)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        transformers = self.encoder_transformer.nbytes + self.decoder_transformer.nbytes
        return transformers + sum(tensor.nbytes for tensor in self._tensors)

    def reset(self, rows: Sequence[int]) -> None:
        """Makes the rows as new."""
        which = Rows(rows, self.encoder.device)
        for tensor in self._tensors:
            tensor.index_fill_(0, which.index, 0)
        self.encoder_transformer.reset(which)
        self.decoder_transformer.reset(which)


class Mimi:
    """The weights. What is remembered of a stream is in a `MimiState`, of which there may be many.

    Calls belong under `torch.inference_mode`; none of them waits for the device.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: MimiConfig, books: int, dtype: torch.dtype
    ) -> None:
        dimension, latents = config.seanet.dimension, config.latents
        self.config = config
        self.books = books
        self._dtype = dtype
        self.encoder = SeanetEncoder(checkpoint, config.seanet, dtype)
        self.decoder = SeanetDecoder(checkpoint, config.seanet, dtype)
        self.quantizer = Quantizer(checkpoint, config.quantizer, books)
        self.downsample = CausalConv.read(
            checkpoint,
            "downsample.conv.conv.conv",
            (dimension, dimension),
            2 * latents,
            latents,
            bias=False,
        ).to(dtype)
        upsample = checkpoint.take(
            "upsample.convtr.convtr.convtr.weight", (dimension, 1, 2 * latents)
        )
        self.upsample = upsample[:, 0].t().contiguous().to(dtype)
        """[2 * latents, dimension]"""
        self._device = self.upsample.device
        self.encoder_transformer, self.decoder_transformer = (
            Transformer(checkpoint, name, config.transformer, self._device, dtype)
            for name in ("encoder_transformer", "decoder_transformer")
        )

    @classmethod
    def load(
        cls,
        path: Path,
        config: MimiConfig,
        *,
        books: int = 8,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Mimi:
        """Reads a safetensors file, of which only the first `books` books are used.

        Raises CheckpointError, which names the tensor, if one is missing, unknown or misshapen.
        """
        if not 1 <= books <= config.quantizer.n_q:
            raise CheckpointError(f"{path.name}: {books} books asked of {config.quantizer.n_q}")
        checkpoint = Checkpoint(path, device=device)
        mimi = cls(checkpoint, config, books, dtype)
        checkpoint.finish()
        return mimi

    @property
    def sample_rate(self) -> int:
        """Hz."""
        return self.config.sample_rate

    @property
    def frame_size(self) -> int:
        """Samples of a frame."""
        return self.config.frame_size

    @property
    def bins(self) -> int:
        """Entries of each book."""
        return self.config.quantizer.bins

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        convs = (*self.encoder.convs, self.downsample, *self.decoder.convs)
        layers = (*self.encoder_transformer.layers, *self.decoder_transformer.layers)
        tensors = [self.upsample, *self.quantizer.weights]
        tensors += [tensor for conv in convs for tensor in conv.weights]
        tensors += [tensor for layer in layers for tensor in layer.weights]
        return sum(tensor.nbytes for tensor in tensors)

    def state(self, slots: int) -> MimiState:
        """Fresh rows."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(slots, *shape, dtype=self._dtype, device=self._device)

        return MimiState(
            encoder=zeros(self.encoder.memory),
            encoder_transformer=self.encoder_transformer.state(slots),
            downsample=zeros(self.downsample.memory),
            upsample=zeros(1, self.config.seanet.dimension),
            decoder_transformer=self.decoder_transformer.state(slots),
            decoder=zeros(self.decoder.memory),
        )

    def encode(self, state: MimiState, rows: Rows, pcm: Tensor) -> Tensor:
        """The codes of one frame of each row.

        pcm: [n, frame_size] float32. Returns [n, books] int64. Raises ValueError for another
        shape.
        """
        if pcm.shape != (len(rows), self.frame_size):
            raise ValueError(f"pcm is {list(pcm.shape)}, expected {[len(rows), self.frame_size]}")
        pcm = pcm.to(self._dtype).unsqueeze(2)
        x, memory = self.encoder(rows.take(state.encoder), pcm)
        rows.put(state.encoder, memory)
        first = rows.take(state.encoder_transformer.offsets) == 0
        x = self.encoder_transformer(state.encoder_transformer, rows, x)
        # A stream begins as if its first latent had been there before.
        before = torch.where(
            first[:, None],
            x[:, :1].expand_as(x).flatten(1),
            rows.take(state.downsample),
        )
        x, memory = self.downsample(before, x)
        rows.put(state.downsample, memory)
        return self.quantizer.encode(x[:, 0].float())

    def decode(self, state: MimiState, rows: Rows, codes: Tensor) -> Tensor:
        """The sound of one frame of each row.

        codes: [n, books] int64, each in 0..bins - 1. Returns [n, frame_size] float32. Raises
        ValueError for another shape.
        """
        if codes.shape != (len(rows), self.books):
            raise ValueError(f"codes are {list(codes.shape)}, expected {[len(rows), self.books]}")
        latent = self.quantizer.decode(codes).to(self._dtype).unsqueeze(1)
        now, after = self.upsample.chunk(2)
        x = torch.addcmul(latent * now, rows.take(state.upsample), after)
        rows.put(state.upsample, latent)
        x = self.decoder_transformer(state.decoder_transformer, rows, x)
        x, memory = self.decoder(rows.take(state.decoder), x)
        rows.put(state.decoder, memory)
        return x.flatten(1).float()
