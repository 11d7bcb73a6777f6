"""The launches of Mimi's convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cuda.kernels import mimi_conv
from engine.cuda.launch import INTERPRETED, chained
from engine.cuda.mimi.chain import Chain, Windows
from engine.cuda.mimi.tiles import NARROWEST, SAMPLES, STAGES, Tile, block_tile, wide
from engine.cuda.mimi.weights import Matrix, padded
from engine.mimi.conv import CausalConv
from engine.mimi.seanet import ResidualBlock, SeanetEncoder

_FUSED = 256
"""Channels up to which a residual block is one launch: above, one program would read too much."""


def convolve(
    chain: Chain,
    source: Windows,
    matrix: Matrix,
    target: Windows,
    *,
    residual: Tensor | None = None,
    elu_in: bool = False,
    elu_out: bool = False,
    replicate: bool = False,
) -> None:
    """Appends a convolution of what `source` holds, to `target`.

    residual: [rows, ...], whose first numbers are added. elu_in, elu_out: ELU before and after.
    replicate: a stream begins as if its first step had filled all that is kept.
    """
    width, window = matrix.weight.shape
    steps = target.length // width
    options = chain.options

    def launch(rows: int, slot: Tensor) -> None:
        count = rows * steps
        tile = Tile.choose(chain.tiled(rows, steps), width, window, chain.dtype.itemsize)
        mimi_conv.convolve[(-(-count // tile.m) * (width // tile.n),)](
            source.data,
            matrix.weight,
            matrix.bias,
            residual,
            target.data,
            target.memory,
            slot,
            chain.frames,
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
            STAGES=STAGES,
            num_warps=tile.warps,
            **options,
        )

    chain.launches.append(launch)


def residual_block(
    chain: Chain, source: Windows, block: ResidualBlock, inner: int, target: Windows
) -> None:
    """Appends a residual block of `inner` hidden channels, and the ELU after it."""
    channels, steps = source.channels, source.steps
    first = Matrix.pack(block.first, channels, inner, chain.dtype)
    second = Matrix.pack(block.second, inner, channels, chain.dtype)
    window = first.weight.shape[1]
    if channels > _FUSED:
        hidden = chain.windows(steps, inner)
        convolve(chain, source, first, hidden, elu_in=True, elu_out=True)
        added = source.data[:, source.kept :]
        convolve(chain, hidden, second, target, residual=added, elu_out=True)
        return
    options = chain.options

    def launch(rows: int, slot: Tensor) -> None:
        count = rows * steps
        most, k = block_tile(chain.tiled(rows, steps), channels, window, chain.dtype.itemsize)
        mimi_conv.residual_block[(-(-count // most),)](
            source.data,
            first.weight,
            first.bias,
            second.weight,
            second.bias,
            target.data,
            target.memory,
            slot,
            chain.frames,
            count,
            SOURCE_ROW=source.data.shape[1],
            WINDOW=window,
            WIDTH=channels,
            INNER=inner,
            STEPS=steps,
            **target.sides,
            TILE_M=most,
            TILE_K=k,
            STAGES=STAGES,
            num_warps=8 if channels * most >= 128 * 64 else 4,
            **options,
        )

    chain.launches.append(launch)


def first_block(
    chain: Chain, encoder: SeanetEncoder, pcm: Tensor, samples: Tensor, inner: int, target: Windows
) -> None:
    """Appends the encoder's first convolution and residual block, in one launch.

    pcm: [max_rows, samples] float32. samples: [slots, 2, kept], the memory of them. inner: hidden
    channels of the block.
    """
    conv, (block, _) = encoder.first, encoder.stages[0]
    width, taps = target.channels, wide(conv.kernel)
    packed = Matrix.pack(conv, 1, width, chain.dtype)
    first = Matrix.pack(block.first, width, inner, chain.dtype)
    second = Matrix.pack(block.second, inner, width, chain.dtype)
    weight0 = padded(packed.weight, width, taps)
    reach = block.first.kernel
    weight1 = first.weight.view(inner, reach, width).transpose(0, 1).contiguous()
    options = {**chained(False), "PRECISION": "ieee"}
    exact = chain.dtype == torch.float32 and not INTERPRETED
    tile = min(NARROWEST if exact else SAMPLES, wide(target.steps))

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
            chain.frames,
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

    chain.launches.append(launch)


def last_conv(chain: Chain, conv: CausalConv, source: Windows, sound: Tensor) -> None:
    """Appends the decoder's last convolution. sound: [max_rows, samples] float32, in [-1, 1]."""
    width, options = source.channels, chained(True)
    assert conv.bias is not None
    weight = padded(conv.weight.float().view(-1, conv.channels), conv.kernel, width)
    bias = conv.bias.float()
    tile = min(SAMPLES, wide(source.steps))

    def launch(rows: int, slot: Tensor) -> None:
        mimi_conv.last_conv[(-(-source.steps // tile), rows)](
            source.data,
            weight,
            bias,
            sound,
            slot,
            chain.frames,
            SAMPLES=source.steps,
            SOURCE_ROW=source.data.shape[1],
            TAPS=conv.kernel,
            WIDTH=width,
            TILE=tile,
            num_warps=4,
            **options,
        )

    chain.launches.append(launch)
