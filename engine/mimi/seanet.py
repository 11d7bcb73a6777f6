"""SEANet: the convolutional encoder and decoder (Tagliasacchi et al., arXiv:2009.02095)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.mimi.config import SeanetConfig
from engine.mimi.conv import CausalConv, Memories


class ResidualBlock:
    """ELU, convolution, ELU, convolution of kernel 1, and the input added."""

    def __init__(
        self, checkpoint: Checkpoint, name: str, channels: int, config: SeanetConfig
    ) -> None:
        inner = channels // config.compress
        self.first = CausalConv.read(
            checkpoint,
            f"{name}.block.1.conv.conv",
            (channels, inner),
            config.residual_kernel_size,
        )
        self.second = CausalConv.read(checkpoint, f"{name}.block.3.conv.conv", (inner, channels), 1)

    @property
    def convs(self) -> list[CausalConv]:
        """In the order in which they run."""
        return [self.first, self.second]

    def __call__(self, memories: Memories, x: Tensor) -> Tensor:
        """[n, T, channels]; x is overwritten."""
        inner = F.elu_(memories.run(self.first, F.elu(x)))
        return x.add_(memories.run(self.second, inner))


class SeanetEncoder:
    """Samples to latents."""

    def __init__(self, checkpoint: Checkpoint, config: SeanetConfig, dtype: torch.dtype) -> None:
        channels = config.n_filters
        self.first = CausalConv.read(
            checkpoint, "encoder.model.0.conv.conv", (1, channels), config.kernel_size
        )
        self.stages: list[tuple[ResidualBlock, CausalConv]] = []
        layer = 1
        for ratio in reversed(config.ratios):
            block = ResidualBlock(checkpoint, f"encoder.model.{layer}", channels, config)
            down = CausalConv.read(
                checkpoint,
                f"encoder.model.{layer + 2}.conv.conv",
                (channels, 2 * channels),
                2 * ratio,
                ratio,
            )
            self.stages.append((block, down))
            channels, layer = 2 * channels, layer + 3
        self.last = CausalConv.read(
            checkpoint,
            f"encoder.model.{layer + 1}.conv.conv",
            (channels, config.dimension),
            config.last_kernel_size,
        )
        inner = [conv for block, down in self.stages for conv in (*block.convs, down)]
        self.convs = [conv.to(dtype) for conv in (self.first, *inner, self.last)]
        self.memory = sum(conv.memory for conv in self.convs)

    def __call__(self, memory: Tensor, pcm: Tensor) -> tuple[Tensor, Tensor]:
        """memory: [n, self.memory]; pcm: [n, samples, 1].

        Returns [n, samples / hop, dimension] and the memory for the next frame.
        """
        memories = Memories(memory, self.convs)
        x = memories.run(self.first, pcm)
        for block, down in self.stages:
            x = memories.run(down, F.elu_(block(memories, x)))
        return memories.run(self.last, F.elu_(x)), memories.join()


class SeanetDecoder:
    """Latents to samples."""

    def __init__(self, checkpoint: Checkpoint, config: SeanetConfig, dtype: torch.dtype) -> None:
        channels = config.decoder << len(config.ratios)
        self.first = CausalConv.read(
            checkpoint,
            "decoder.model.0.conv.conv",
            (config.dimension, channels),
            config.kernel_size,
        )
        self.stages: list[tuple[CausalConv, ResidualBlock]] = []
        layer = 1
        for ratio in config.ratios:
            up = CausalConv.read_transposed(
                checkpoint,
                f"decoder.model.{layer + 1}.convtr.convtr",
                (channels, channels // 2),
                ratio,
            )
            channels //= 2
            block = ResidualBlock(checkpoint, f"decoder.model.{layer + 2}", channels, config)
            self.stages.append((up, block))
            layer += 3
        self.last = CausalConv.read(
            checkpoint,
            f"decoder.model.{layer + 1}.conv.conv",
            (channels, 1),
            config.last_kernel_size,
        )
        inner = [conv for up, block in self.stages for conv in (up, *block.convs)]
        self.convs = [conv.to(dtype) for conv in (self.first, *inner, self.last)]
        self.memory = sum(conv.memory for conv in self.convs)

    def __call__(self, memory: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """memory: [n, self.memory]; latents: [n, T, dimension].

        Returns [n, T * hop, 1] and the memory for the next frame.
        """
        memories = Memories(memory, self.convs)
        x = memories.run(self.first, latents)
        for up, block in self.stages:
            x = memories.run(up, F.elu_(x))
            channels = block.second.weight.shape[1]
            x = block(memories, x.view(x.shape[0], -1, channels))
        return memories.run(self.last, F.elu_(x)), memories.join()
