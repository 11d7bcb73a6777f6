"""Causal convolutions on channels-last frames, each one matrix product over the input's windows.

They are pure: what a convolution must remember, its last inputs, goes in and comes out. A stack
keeps all of its convolutions' memories in one tensor, so that slot rows are taken and put once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.checkpoint import Checkpoint


class CausalConv:
    """A convolution whose output at a time depends on no later input.

    weight: [out, in, kernel] as in torch's Conv1d; bias: [out]. The memory, `kernel - stride`
    inputs, is zero before the first frame.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, stride: int = 1) -> None:
        self.channels, self.kernel = weight.shape[1:]
        self.stride = stride
        self.kept = self.kernel - stride
        """Inputs that are remembered."""
        self.weight = weight.permute(2, 1, 0).flatten(0, 1).contiguous()
        """[kernel * in, out]"""
        self.bias = bias

    @classmethod
    def read(
        cls,
        checkpoint: Checkpoint,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        *,
        bias: bool = True,
    ) -> CausalConv:
        """Reads `name`.weight and .bias of a convolution of (in, out) channels."""
        inner, outer = channels
        weight = checkpoint.take(f"{name}.weight", (outer, inner, kernel))
        return cls(weight, checkpoint.take(f"{name}.bias", (outer,)) if bias else None, stride)

    @classmethod
    def read_transposed(
        cls, checkpoint: Checkpoint, name: str, channels: tuple[int, int], stride: int
    ) -> CausalConv:
        """Reads a transposed convolution of kernel 2 * stride that emits at once.

        Input t reaches outputs stride * t to stride * (t + 2) - 1, so the `stride` outputs of one
        input need that input and the one before: an ordinary convolution of kernel 2, whose
        output channels are the times and channels of one input's outputs.
        """
        inner, outer = channels
        weight = checkpoint.take(f"{name}.weight", (inner, outer, 2 * stride))
        bias = checkpoint.take(f"{name}.bias", (outer,)).repeat(stride)
        now, after = weight.chunk(2, dim=2)
        pair = torch.stack([after, now])  # [2, in, out, stride]
        return cls(pair.permute(3, 2, 1, 0).flatten(0, 1), bias)

    def to(self, dtype: torch.dtype) -> CausalConv:
        """Itself, with weights in `dtype`."""
        self.weight = self.weight.to(dtype)
        self.bias = self.bias.to(dtype) if self.bias is not None else None
        return self

    @property
    def memory(self) -> int:
        """Numbers that are remembered for one row."""
        return self.kept * self.channels

    @property
    def weights(self) -> list[Tensor]:
        """Its tensors."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, memory: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [n, T, in], T a multiple of the stride; memory: [n, self.memory].

        Returns [n, T / stride, out] and the memory for the next frame.
        """
        n, length, channels = x.shape
        if self.kept:
            x = torch.cat([memory.view(n, self.kept, channels), x], 1)
            memory = x[:, -self.kept :].flatten(1)
        else:
            x = x.contiguous()
        size = (n, length // self.stride, self.kernel * channels)
        windows = x.as_strided(size, (x.stride(0), self.stride * channels, 1)).reshape(-1, size[2])
        if self.bias is None:
            y = windows @ self.weight
        else:
            y = torch.addmm(self.bias, windows, self.weight)
        return y.view(n, size[1], -1), memory


class Memories:
    """The memories of a stack's convolutions during one frame, in the order in which they run."""

    def __init__(self, memory: Tensor, convs: Sequence[CausalConv]) -> None:
        self._old = iter(memory.split_with_sizes([conv.memory for conv in convs], 1))
        self._new: list[Tensor] = []

    def run(self, conv: CausalConv, x: Tensor) -> Tensor:
        """The next convolution on its own memory."""
        y, memory = conv(next(self._old), x)
        self._new.append(memory)
        return y

    def join(self) -> Tensor:
        """The stack's memory for the next frame: [n, sum of all]."""
        return torch.cat(self._new, 1)
