"""Mimi on a GPU: each direction a chain of kernel launches on static buffers.

A frame of the published codec is 59 launches of encode and 52 of decode, whatever the rows. At one
row the chain of launches is what takes the time, so each fetches its weights while the one before
it ends; at many it is the bytes of activations and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine import rope
from engine.cuda.kernels import mimi_conv, mimi_quantizer, mimi_transformer
from engine.cuda.launch import INTERPRETED, chained
from engine.mimi.codec import Mimi
from engine.mimi.conv import CausalConv
from engine.mimi.seanet import ResidualBlock
from engine.mimi.transformer import EPS, Layer, Transformer

_NARROWEST = 16
"""Numbers that a matrix unit takes at once: no dimension is narrower."""
_FUSED = 256
"""Channels up to which a residual block is one launch: above, one program would read too much."""
_FIXED_ROWS = 64
"""Rows for which the tiles are chosen that serve any number of rows."""
_PROGRAMS = 96
"""Programs enough to keep the GPU busy: tiles are made smaller until there are as many."""
_TILE_BYTES = 1 << 17
"""Shared memory of a program's tiles."""
_STAGES = 3
"""Tiles of a product's inputs that are under way at once."""
_TILES: tuple[tuple[int, int], ...] = (
    (128, 128),
    (128, 64),
    (64, 64),
    (64, 32),
    (32, 32),
    (32, 16),
    (16, 16),
)
if INTERPRETED:
    # There each program takes its time, whatever its size.
    _PROGRAMS, _TILES, _TILE_BYTES = 1, ((1024, 256), (256, 64), *_TILES), 1 << 24
_BLOCK_NUMBERS = 1 << 20 if INTERPRETED else 128 * 128
"""Outputs of a residual block that one program holds."""
_BLOCK_K = 4096 if INTERPRETED else 64
"""Numbers of a residual block's windows that are taken at once."""
_SAMPLES = 1024 if INTERPRETED else 64
"""Samples of a program next to the waveform."""

Launch = Callable[[int, Tensor], None]
"""Enqueues a kernel for the first rows of the batch, whose state rows it is told."""


def wide(size: int) -> int:
    """A dimension as the kernels have it: a power of two, zeros behind the real numbers."""
    return max(_NARROWEST, 1 << (size - 1).bit_length())


def padded(tensor: Tensor, *shape: int) -> Tensor:
    """A copy with zeros behind each dimension, up to `shape`."""
    out = tensor.new_zeros(shape)
    out[tuple(slice(size) for size in tensor.shape)] = tensor
    return out


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program makes of a matrix product, and how."""

    m: int
    n: int
    k: int
    warps: int

    @classmethod
    def choose(cls, count: int, width: int, window: int, itemsize: int) -> Tile:
        """For [count, window] x [window, width] of numbers of `itemsize` bytes."""
        # Products of float32 are made number by number, and unrolled: small ones.
        tiles = _TILES if itemsize < 4 or INTERPRETED else _TILES[-3:]
        fitting = [(m, n) for m, n in tiles if width % n == 0 and (m <= count or m == _NARROWEST)]
        enough = [(m, n) for m, n in fitting if -(-count // m) * (width // n) >= _PROGRAMS]
        m, n = (enough or fitting[-1:])[0]
        most = _TILE_BYTES // (_STAGES * (m + n) * itemsize)
        k = min(window & -window, 1 << (most.bit_length() - 1))
        return cls(m, n, k, warps=8 if m * n >= 128 * 64 else 4)


def block_tile(count: int, channels: int, window: int, itemsize: int) -> tuple[int, int]:
    """Windows of `count` that a program takes of a residual block, and numbers of them at once."""
    if itemsize == 4 and not INTERPRETED:
        return _NARROWEST, min(window & -window, 2 * _NARROWEST)
    most = min(_TILES[0][0], _BLOCK_NUMBERS // channels)
    while most > _NARROWEST and -(-count // most) < _PROGRAMS:
        most //= 2
    return most, min(window & -window, _BLOCK_K)


@dataclass(frozen=True, slots=True)
class Windows:
    """A batch buffer that a convolution reads: see `engine.cuda.kernels.mimi_conv`."""

    data: Tensor
    """[max_rows, kept + length]"""
    steps: int
    channels: int
    memory: Tensor | None
    """[slots, 2, kept] of the slots' memory."""

    @property
    def length(self) -> int:
        """Numbers of a frame."""
        return self.steps * self.channels

    @property
    def kept(self) -> int:
        """Numbers kept from the frames before."""
        return self.data.shape[1] - self.length

    @property
    def sides(self) -> dict[str, int]:
        """Distances in the memory."""
        memory = self.memory
        side, slot = (memory.stride(1), memory.stride(0)) if memory is not None else (0, 0)
        return {"KEPT": self.kept, "MEMORY_SIDE": side, "MEMORY_SLOT": slot}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A convolution's or projection's weights, repacked."""

    weight: Tensor
    """[width, window]"""
    bias: Tensor | None
    """[width] float32"""
    step: int
    """Numbers from one window to the next."""

    @classmethod
    def pack(
        cls, conv: CausalConv, inner: int, outer: int, dtype: torch.dtype, *, groups: int = 1
    ) -> Matrix:
        """Of a convolution whose outputs are `groups` times of `outer` channels each."""
        kernel, channels = conv.kernel, conv.channels
        weight = conv.weight.float().view(kernel, channels, groups, -1).permute(2, 3, 0, 1)
        weight = padded(weight, groups, outer, kernel, inner).flatten(2).flatten(0, 1)
        bias = conv.bias
        if bias is not None:
            bias = padded(bias.float().view(groups, -1), groups, outer).flatten()
        return cls(weight.to(dtype), bias, conv.stride * inner)


class _Direction:
    """One direction's state, buffers and launches."""

    def __init__(
        self,
        mimi: Mimi,
        transformer: Transformer,
        slots: int,
        max_rows: int,
        dtype: torch.dtype,
        fixed: bool,
    ) -> None:
        self.config = mimi.config
        self.slots, self.max_rows, self.dtype, self.fixed = slots, max_rows, dtype, fixed
        self.device = mimi.upsample.device
        self.options: dict[str, Any] = {**chained(True), "PRECISION": "ieee"}
        """Launch options of all kernels of a frame but its first one.

        That one waits for all before it: what the others read before they wait, the state and the
        weights, is settled then.
        """
        self.launches: list[Launch] = []
        self.frames = torch.zeros(slots, dtype=torch.int32, device=self.device)
        """[slots], frames seen."""

        shape = transformer.config
        self.latents = mimi.config.latents
        self.dim = wide(shape.d_model)
        self.half = wide(shape.head_dim // 2)
        self.x = self.zeros(max_rows * self.latents, self.dim, dtype=torch.float32)
        """[max_rows * latents, dim], the transformer's residual stream."""
        inner = shape.num_heads * 2 * self.half
        self._qkv = self.zeros(max_rows * self.latents, 3 * inner)
        self._heard = self.zeros(max_rows * self.latents, inner)
        self._inner = self.zeros(max_rows * self.latents, wide(shape.dim_feedforward))
        self.ring = self.zeros(
            shape.num_layers, slots, shape.num_heads, 2, shape.context, 2 * self.half
        )
        """[layers, slots, heads, 2 (key, value), context, head dimension]"""
        self.memory = self.zeros(0)
        """[slots, numbers], inputs of the convolutions, in two sides each."""

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """On the device, of the working dtype."""
        return torch.zeros(*shape, dtype=dtype or self.dtype, device=self.device)

    def reserve(self, *kept: int) -> list[Tensor]:
        """Makes the memory: a view [slots, 2, kept] for each."""
        sizes = [-(-2 * count // _NARROWEST) * _NARROWEST for count in kept]
        self.memory = self.zeros(self.slots, sum(sizes))
        parts = self.memory.split_with_sizes(sizes, 1)
        return [
            part[:, : 2 * count].view(self.slots, 2, count)
            for part, count in zip(parts, kept, strict=True)
        ]

    def windows(self, steps: int, channels: int, memory: Tensor | None = None) -> Windows:
        """A buffer of `steps` times `channels` numbers behind what `memory` keeps."""
        kept = 0 if memory is None else memory.shape[2]
        return Windows(self.zeros(self.max_rows, kept + steps * channels), steps, channels, memory)

    def reset(self, slots: Tensor) -> None:
        """Makes state rows as new."""
        self.frames.index_fill_(0, slots, 0)
        self.memory.index_fill_(0, slots, 0)
        self.ring.index_fill_(1, slots, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots' state."""
        return self.frames.nbytes + self.memory.nbytes + self.ring.nbytes

    def run(self, rows: int, slot: Tensor) -> None:
        """Enqueues all launches."""
        for launch in self.launches:
            launch(rows, slot)

    def tile(self, count: int, steps: int, width: int, window: int) -> Tile:
        """The tile of a matrix product over `count` windows, `steps` a row."""
        if self.fixed:
            count = _FIXED_ROWS * steps
        return Tile.choose(count, width, window, self.dtype.itemsize)

    def convolve(
        self,
        source: Windows,
        matrix: Matrix,
        target: Windows,
        *,
        residual: Tensor | None = None,
        elu_in: bool = False,
        elu_out: bool = False,
        replicate: bool = False,
    ) -> None:
        """Appends a convolution. residual: [rows, ...], whose first numbers are added."""
        width, window = matrix.weight.shape
        steps = target.length // width
        options = self.options

        def launch(rows: int, slot: Tensor) -> None:
            count = rows * steps
            tile = self.tile(count, steps, width, window)
            mimi_conv.convolve[(-(-count // tile.m) * (width // tile.n),)](
                source.data,
                matrix.weight,
                matrix.bias,
                residual,
                target.data,
                target.memory,
                slot,
                self.frames,
                count,
                SOURCE_ROW=source.data.shape[1],
                STEP=matrix.step,
                WINDOW=window,
                WIDTH=width,
                STEPS=steps,
                **target.sides,
                RESIDUAL_ROW=0 if residual is None else residual.stride(0),
                HAS_BIAS=matrix.bias is not None,
                HAS_RESIDUAL=residual is not None,
                ELU_IN=elu_in,
                ELU_OUT=elu_out,
                REPLICATE=replicate,
                TILE_M=tile.m,
                TILE_N=tile.n,
                TILE_K=tile.k,
                STAGES=_STAGES,
                num_warps=tile.warps,
                **options,
            )

        self.launches.append(launch)

    def block(self, source: Windows, block: ResidualBlock, inner: int, target: Windows) -> None:
        """Appends a residual block of `inner` hidden channels, and the ELU after it."""
        channels, steps = source.channels, source.steps
        first = Matrix.pack(block.first, channels, inner, self.dtype)
        second = Matrix.pack(block.second, inner, channels, self.dtype)
        window = first.weight.shape[1]
        if channels > _FUSED:
            hidden = self.windows(steps, inner)
            self.convolve(source, first, hidden, elu_in=True, elu_out=True)
            added = source.data[:, source.kept :]
            self.convolve(hidden, second, target, residual=added, elu_out=True)
            return
        options = self.options

        def launch(rows: int, slot: Tensor) -> None:
            count = rows * steps
            tiled = _FIXED_ROWS * steps if self.fixed else count
            most, k = block_tile(tiled, channels, window, self.dtype.itemsize)
            mimi_conv.residual_block[(-(-count // most),)](
                source.data,
                first.weight,
                first.bias,
                second.weight,
                second.bias,
                target.data,
                target.memory,
                slot,
                self.frames,
                count,
                SOURCE_ROW=source.data.shape[1],
                WINDOW=window,
                WIDTH=channels,
                INNER=inner,
                STEPS=steps,
                **target.sides,
                TILE_M=most,
                TILE_K=k,
                STAGES=_STAGES,
                num_warps=8 if channels * most >= 128 * 64 else 4,
                **options,
            )

        self.launches.append(launch)

    def transform(self, transformer: Transformer, target: Windows, *, replicate: bool) -> None:
        """Appends a transformer on `self.x`, whose last layer writes to `target`."""
        config = transformer.config
        frequencies = rope.frequencies(config.head_dim, config.max_period, self.device)
        frequencies = padded(frequencies, self.half)
        x = Windows(self.x.view(self.max_rows, -1), self.latents, self.dim, None)
        heard, inner = (
            Windows(data.view(self.max_rows, -1), self.latents, data.shape[1], None)
            for data in (self._heard, self._inner)
        )
        for index, layer in enumerate(transformer.layers):
            weights = _LayerWeights.pack(layer, config.num_heads, self.dim, self.half, self.dtype)
            self._norm_linear(weights.norm1, weights.in_proj, self._qkv, gelu=False)
            self._attend(index, frequencies)
            self.convolve(heard, weights.out_proj, x, residual=x.data)
            self._norm_linear(weights.norm2, weights.linear1, self._inner, gelu=True)
            last = index == config.num_layers - 1
            self.convolve(
                inner,
                weights.linear2,
                target if last else x,
                residual=x.data,
                replicate=last and replicate,
            )

    def _norm_linear(
        self, norm: tuple[Tensor, Tensor], weight: Tensor, out: Tensor, *, gelu: bool
    ) -> None:
        width, dim = weight.shape
        options = self.options

        def launch(rows: int, slot: Tensor) -> None:
            count = rows * self.latents
            tile = self.tile(count, self.latents, width, dim)
            m, n = min(tile.m, 64), min(tile.n, 64)
            mimi_transformer.norm_linear[(-(-count // m) * (width // n),)](
                self.x,
                *norm,
                weight,
                out,
                count,
                EPS,
                CHANNELS=self.config.transformer.d_model,
                DIM=dim,
                WIDTH=width,
                GELU=gelu,
                TILE_M=m,
                TILE_N=n,
                num_warps=8 if m * n > 32 * 32 else 4,
                **options,
            )

        self.launches.append(launch)

    def _attend(self, layer: int, frequencies: Tensor) -> None:
        config, ring, options = self.config.transformer, self.ring[layer], self.options

        def launch(rows: int, slot: Tensor) -> None:
            mimi_transformer.attend[(rows, config.num_heads)](
                self._qkv,
                ring,
                self._heard,
                frequencies,
                slot,
                self.frames,
                config.head_dim**-0.5,
                RING_SLOT=ring.stride(0),
                STEPS=self.latents,
                STEPS_TILE=wide(self.latents),
                CONTEXT=config.context,
                CELLS=wide(config.context),
                HEADS=config.num_heads,
                HALF=self.half,
                num_warps=8,
                **options,
            )

        self.launches.append(launch)


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """A transformer layer's weights, repacked."""

    norm1: tuple[Tensor, Tensor]
    in_proj: Tensor
    out_proj: Matrix
    norm2: tuple[Tensor, Tensor]
    linear1: Tensor
    linear2: Matrix

    @classmethod
    def pack(
        cls, layer: Layer, heads: int, dim: int, half: int, dtype: torch.dtype
    ) -> _LayerWeights:
        """Of a layer of `dim` channels, whose heads become 2 * half wide."""
        channels, features = layer.linear1.shape
        inner = wide(features)
        in_proj = layer.in_proj.float().t()
        query_key, value = in_proj[: 2 * channels], in_proj[2 * channels :]
        # The first numbers of all pairs, then the second ones: see `attend`.
        query_key = query_key.reshape(2, heads, -1, 2, channels).transpose(2, 3)
        query_key = padded(query_key, 2, heads, 2, half, dim).flatten(2, 3)
        value = padded(value.reshape(1, heads, -1, channels), 1, heads, 2 * half, dim)
        out_proj = layer.out_proj.float().t().reshape(channels, heads, -1)
        out_proj = padded(out_proj, dim, heads, 2 * half).flatten(1)

        def norm(weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            scale, offset = weights
            return padded(scale.float(), dim), padded(offset.float(), dim)

        return cls(
            norm1=norm(layer.norm1),
            in_proj=torch.cat([query_key, value]).flatten(0, 2).to(dtype),
            out_proj=Matrix(out_proj.to(dtype), None, out_proj.shape[1]),
            norm2=norm(layer.norm2),
            linear1=padded(layer.linear1.float().t(), inner, dim).to(dtype),
            linear2=Matrix(padded(layer.linear2.float().t(), dim, inner).to(dtype), None, inner),
        )


class CudaMimi:
    """What `engine.mimi.codec.Mimi` computes, for up to `max_rows` rows at once.

    Made of its weights, on its device. slots: rows of state, a trash row included. fixed: a row's
    numbers don't depend on how many rows there are. encode and decode may be captured in a CUDA
    graph; each takes the next frame of every row it is told.
    """

    def __init__(
        self,
        mimi: Mimi,
        slots: int,
        max_rows: int,
        *,
        dtype: torch.dtype = torch.float16,
        fixed: bool = False,
    ) -> None:
        frame_size, books, device = mimi.frame_size, mimi.books, mimi.upsample.device
        self.pcm = torch.zeros(max_rows, frame_size, device=device)
        """[max_rows, frame_size] float32, what `encode` takes."""
        self.codes = torch.zeros(max_rows, books, dtype=torch.int32, device=device)
        """[max_rows, books] int32, what `encode` gives."""
        self.sound = torch.zeros(max_rows, frame_size, device=device)
        """[max_rows, frame_size] float32 in [-1, 1], what `decode` gives."""
        self._encoder = _Encoder(mimi, slots, max_rows, dtype, fixed, self.pcm, self.codes)
        self._decoder = _Decoder(mimi, slots, max_rows, dtype, fixed, self.sound)
        self._slots = slots

    def encode(self, rows: int, slot: Tensor) -> None:
        """The codes of `pcm`, for the first `rows` rows, whose states are `slot` [rows] int32."""
        self._encoder.run(rows, slot)

    def decode(self, rows: int, slot: Tensor, codes: Tensor) -> None:
        """The sound of `codes` [max_rows, books] int32, likewise."""
        self._decoder.decode(rows, slot, codes)

    def reset(self, slots: Tensor) -> None:
        """Makes state rows as new. slots: [n] int64."""
        self._encoder.reset(slots)
        self._decoder.reset(slots)

    @property
    def nbytes_per_slot(self) -> int:
        """Bytes of one slot's state."""
        return (self._encoder.nbytes + self._decoder.nbytes) // self._slots


class _Encoder(_Direction):
    """Samples to codes."""

    def __init__(
        self,
        mimi: Mimi,
        slots: int,
        max_rows: int,
        dtype: torch.dtype,
        fixed: bool,
        pcm: Tensor,
        codes: Tensor,
    ) -> None:
        super().__init__(mimi, mimi.encoder_transformer, slots, max_rows, dtype, fixed)
        encoder, config = mimi.encoder, mimi.config.seanet
        first, steps = encoder.stages[0][0].first, mimi.frame_size
        widths = [wide(config.n_filters << index) for index in range(len(encoder.stages) + 1)]
        inners = [wide((config.n_filters << i) // config.compress) for i in range(len(widths))]
        kept = [encoder.first.kept + first.kept]
        for index, (block, down) in enumerate(encoder.stages):
            # The first block is computed from samples.
            kept += [block.first.kept * widths[index]] * (index > 0) + [down.kept * widths[index]]
        kept += [encoder.last.kept * widths[-1], mimi.downsample.kept * self.dim]
        samples, *memories = self.reserve(*kept)
        place = iter(memories)

        source = self.windows(steps, widths[0], next(place))
        self._first_block(mimi, pcm, samples, inners[0], source)
        for index, (block, down) in enumerate(encoder.stages):
            width, last = widths[index + 1], index == len(encoder.stages) - 1
            if index:
                blocked = self.windows(steps, widths[index], next(place))
                self.block(source, block, inners[index], blocked)
                source = blocked
            matrix = Matrix.pack(down, widths[index], width, dtype)
            steps //= down.stride
            reduced = self.windows(steps, width, next(place))
            self.convolve(source, matrix, reduced, elu_out=last)
            source = reduced
        matrix = Matrix.pack(encoder.last, widths[-1], self.dim, dtype)
        x = Windows(self.x.view(max_rows, -1), self.latents, self.dim, None)
        self.convolve(source, matrix, x)
        latents = self.windows(self.latents, self.dim, next(place))
        self.transform(mimi.encoder_transformer, latents, replicate=True)
        self._quantise(mimi, latents, codes)

    def _first_block(
        self, mimi: Mimi, pcm: Tensor, samples: Tensor, inner: int, target: Windows
    ) -> None:
        conv, (block, _) = mimi.encoder.first, mimi.encoder.stages[0]
        width, taps = target.channels, wide(conv.kernel)
        packed = Matrix.pack(conv, 1, width, self.dtype)
        first = Matrix.pack(block.first, width, inner, self.dtype)
        second = Matrix.pack(block.second, inner, width, self.dtype)
        weight0 = padded(packed.weight, width, taps)
        reach = block.first.kernel
        weight1 = first.weight.view(inner, reach, width).transpose(0, 1).contiguous()
        options = {**chained(False), "PRECISION": "ieee"}
        exact = self.dtype == torch.float32 and not INTERPRETED
        tile = min(_NARROWEST if exact else _SAMPLES, wide(target.steps))

        def launch(rows: int, slot: Tensor) -> None:
            mimi_conv.first_block[(-(-target.steps // tile), rows)](
                pcm,
                weight0,
                packed.bias,
                weight1,
                first.bias,
                second.weight,
                second.bias,
                target.data,
                samples,
                target.memory,
                slot,
                self.frames,
                SAMPLES=target.steps,
                TAPS=conv.kernel,
                TAPS_TILE=taps,
                REACH=reach,
                WIDTH=width,
                INNER=inner,
                **target.sides,
                KEPT_SAMPLES_TILE=wide(samples.shape[2]),
                SAMPLES_SIDE=samples.stride(1),
                TILE=tile,
                num_warps=4,
                **options,
            )

        self.launches.append(launch)

    def _quantise(self, mimi: Mimi, latents: Windows, codes: Tensor) -> None:
        """The strided convolution and the quantiser's projections, one matrix, then the books."""
        quantizer, config = mimi.quantizer, mimi.config.quantizer
        books, bins, dim = mimi.books, wide(config.bins), wide(config.dimension)
        down, into = mimi.downsample.weight.double(), quantizer.into.double()
        weight = (down @ into).float().view(mimi.downsample.kernel, -1, 2, config.dimension)
        weight = padded(
            weight.permute(2, 3, 0, 1), 2, dim, mimi.downsample.kernel, self.dim
        ).flatten(2)
        matrix = Matrix(weight.flatten(0, 1).to(self.dtype), None, 0)
        projected = Windows(
            self.zeros(self.max_rows, 2 * dim, dtype=torch.float32), 1, 2 * dim, None
        )
        self.convolve(latents, matrix, projected)

        tables = torch.stack(
            [padded(book.vectors, bins, dim) for chain in quantizer.chains for book in chain]
        )
        half_norms = tables.square().sum(2) / 2
        half_norms[:, config.bins :] = torch.inf
        left = self.zeros(2, self.max_rows, dim, dtype=torch.float32)
        distance = self.zeros(books, self.max_rows, bins // _NARROWEST, dtype=torch.float32)
        entry = self.zeros(books, self.max_rows, bins // _NARROWEST, dtype=torch.int32)
        precision = "ieee" if self.dtype == torch.float32 else "tf32x3"
        options = self.options | {"PRECISION": precision}
        last = books - 1

        def tile_n(rows: int) -> int:
            return min(bins, 16 if rows <= 16 and not self.fixed else 64)

        def launch_step(step: int) -> Launch:
            def launch(rows: int, slot: Tensor) -> None:
                n = tile_n(rows)
                grid = (-(-rows // 16) * (bins // n), 2 if step == 0 and books > 1 else 1)
                mimi_quantizer.nearest[grid](
                    projected.data,
                    left,
                    tables,
                    half_norms,
                    distance,
                    entry,
                    codes,
                    rows,
                    self.max_rows,
                    step,
                    STEP=min(step, 2),
                    BOOKS=books,
                    BINS=bins,
                    DIM=dim,
                    TILE_M=16,
                    TILE_N=n,
                    TILE_K=min(dim, 64),
                    num_warps=4,
                    **options,
                )

            return launch

        self.launches += [launch_step(step) for step in range(max(last, 1))]
        finish = chained(True)

        def launch(rows: int, slot: Tensor) -> None:
            mimi_quantizer.finish_codes[(rows,)](
                distance,
                entry,
                codes,
                slot,
                self.frames,
                self.max_rows,
                BOOKS=books,
                BINS=bins,
                LAST=last,
                PARTS=bins // tile_n(rows),
                num_warps=1,
                **finish,
            )

        self.launches.append(launch)


class _Decoder(_Direction):
    """Codes to samples."""

    def __init__(
        self,
        mimi: Mimi,
        slots: int,
        max_rows: int,
        dtype: torch.dtype,
        fixed: bool,
        sound: Tensor,
    ) -> None:
        super().__init__(mimi, mimi.decoder_transformer, slots, max_rows, dtype, fixed)
        decoder, config = mimi.decoder, mimi.config.seanet
        count = len(decoder.stages)
        widths = [wide(config.decoder << (count - index)) for index in range(count + 1)]
        inners = [
            wide((config.decoder << (count - index)) // config.compress)
            for index in range(count + 1)
        ]
        kept = [self.dim, decoder.first.kept * self.dim]
        for index, (up, block) in enumerate(decoder.stages):
            kept += [up.kept * widths[index], block.first.kept * widths[index + 1]]
        kept.append(decoder.last.kept * widths[-1])
        self._latent, *memories = self.reserve(*kept)
        place = iter(memories)

        quantizer, bins = mimi.quantizer, mimi.bins
        self._books = mimi.books
        self._bins = bins
        self._table = padded(quantizer.table, quantizer.table.shape[0], self.dim)
        self._upsample = padded(mimi.upsample, mimi.upsample.shape[0], self.dim).to(dtype)

        source = self.windows(self.latents, self.dim, next(place))
        self.transform(mimi.decoder_transformer, source, replicate=False)
        matrix = Matrix.pack(decoder.first, self.dim, widths[0], dtype)
        steps = self.latents
        grown = self.windows(steps, widths[0], next(place))
        self.convolve(source, matrix, grown, elu_out=True)
        source = grown
        for index, (up, block) in enumerate(decoder.stages):
            width = widths[index + 1]
            stride = config.ratios[index]
            matrix = Matrix.pack(up, widths[index], width, dtype, groups=stride)
            steps *= stride
            grown = self.windows(steps, width, next(place))
            self.convolve(source, matrix, grown)
            blocked = self.windows(steps, width, next(place))
            self.block(grown, block, inners[index + 1], blocked)
            source = blocked
        self._last_conv(decoder.last, source, sound)

    def decode(self, rows: int, slot: Tensor, codes: Tensor) -> None:
        """Enqueues all launches for `codes`."""
        mimi_quantizer.dequantise[(rows,)](
            codes,
            self._table,
            self._upsample,
            self.x,
            self._latent,
            slot,
            self.frames,
            BOOKS=self._books,
            BINS=self._bins,
            DIM=self.dim,
            STEPS=self.latents,
            MEMORY_SIDE=self._latent.stride(1),
            MEMORY_SLOT=self._latent.stride(0),
            num_warps=4,
            **chained(False),
        )
        self.run(rows, slot)

    def _last_conv(self, conv: CausalConv, source: Windows, sound: Tensor) -> None:
        width, options = source.channels, chained(True)
        assert conv.bias is not None
        weight = padded(conv.weight.float().view(-1, conv.channels), conv.kernel, width)
        bias = conv.bias.float()
        tile = min(_SAMPLES, wide(source.steps))

        def launch(rows: int, slot: Tensor) -> None:
            mimi_conv.last_conv[(-(-source.steps // tile), rows)](
                source.data,
                weight,
                bias,
                sound,
                slot,
                self.frames,
                SAMPLES=source.steps,
                SOURCE_ROW=source.data.shape[1],
                TAPS=conv.kernel,
                WIDTH=width,
                TILE=tile,
                num_warps=4,
                **options,
            )

        self.launches.append(launch)
