"""The codec's encoder as matrix products, to code many conversations with on a GPU.

Twenty channels at 24 kHz suit no convolution kernel. Here the samples of a block are channels side
by side, [rows, blocks, samples * channels]; a causal convolution is one product with a matrix that
holds its taps, once for the block itself and once for each block before that it reaches into.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.nano.codec import Codec
from recipes.nano.mimi import INPUT_GAIN, CausalConv, Residual

WIDTH = 80  # a block has at least so many channels


class BlockConv:
    """A causal convolution over blocks of `size` samples, a multiple of its stride."""

    def __init__(self, conv: nn.Conv1d, size: int, dtype: torch.dtype) -> None:
        outputs, inputs, kernel = conv.weight.shape
        stride = conv.stride[0]
        reach = kernel - stride
        self.size, self._before = size, -(-reach // size)
        self._width = size // stride * outputs
        taps = conv.weight.new_zeros(size, inputs, self._before + 1, size // stride, outputs)
        for out in range(size // stride):
            for tap in range(kernel):
                block, sample = divmod(out * stride - reach + tap, size)
                taps[sample, :, -block, out] = conv.weight[:, :, tap].t()
        self._taps = taps.reshape(size * inputs, -1).to(dtype)
        assert conv.bias is not None
        self._bias = conv.bias.repeat(size // stride).to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, samples, inputs] -> [rows, samples / stride, outputs], in any block size."""
        blocks = x.reshape(len(x), -1, len(self._taps))
        if not self._before:
            return F.linear(blocks, self._taps.t(), self._bias)
        parts = torch.split(blocks @ self._taps, self._width, -1)
        out: Tensor = parts[0] + self._bias
        for before, part in enumerate(parts[1:], 1):
            out[:, before:] += part[:, :-before]
        return out


class BlockEncoder:
    """`codec.encoder` with its weights as they are now: [rows, samples] -> [rows, dim, time]."""

    def __init__(self, encoder: nn.Sequential, dtype: torch.dtype) -> None:
        self._steps: list[BlockConv | tuple[BlockConv, BlockConv] | None] = []
        layers = list(encoder)
        for i, layer in enumerate(layers):
            if isinstance(layer, CausalConv):
                conv = layer.weight_conv
                size = max(conv.stride[0], 16 if conv.in_channels == 1 else 1)
                self._steps.append(BlockConv(conv, size, dtype))
            elif isinstance(layer, Residual):
                down = layers[i + 2]
                assert isinstance(down, CausalConv)
                size = 1
                while size * down.weight_conv.in_channels < WIDTH:
                    size *= 2
                first, second = layer.block[1], layer.block[3]
                assert isinstance(first, CausalConv)
                assert isinstance(second, CausalConv)
                self._steps.append((
                    BlockConv(first.weight_conv, size, dtype),
                    BlockConv(second.weight_conv, size, dtype),
                ))  # fmt: skip
            else:
                self._steps.append(None)
        self._dtype = dtype

    def __call__(self, pcm: Tensor) -> Tensor:
        x = (pcm * INPUT_GAIN).to(self._dtype)[..., None]
        for step in self._steps:
            if step is None:
                x = F.elu(x, inplace=True)
            elif isinstance(step, tuple):
                first, second = step
                rows = x.reshape(len(x), -1, second._width)
                x = second(F.elu(first(F.elu(rows)), inplace=True)) + rows
            else:
                x = step(x)
        return x.transpose(1, 2)


class Coder:
    """`codec.encode`, faster on a GPU, with the weights as they are now.

    All before the quantiser is computed in `dtype`; fp16 changes a code in a hundred.
    """

    def __init__(self, codec: Codec, dtype: torch.dtype) -> None:
        self._codec, self._dtype = codec, dtype
        encoder = codec.encoder.model
        assert isinstance(encoder, nn.Sequential)
        with torch.no_grad():
            self._encoder = BlockEncoder(encoder, dtype)

    @torch.no_grad()
    def __call__(self, pcm: Tensor) -> Tensor:
        """[rows, samples] -> codes [rows, 8, frames]."""
        codec, half = self._codec, self._dtype != torch.float32
        with torch.autocast(pcm.device.type, self._dtype if half else None, enabled=half):
            x = codec.encoder_transformer(self._encoder(pcm))
            latent = codec.downsample.conv(x)  # type: ignore[operator]
        codes: Tensor = codec.quantizer(latent.float()).codes
        return codes
