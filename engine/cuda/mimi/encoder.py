"""Mimi's encoder on a GPU: samples to codes."""

from __future__ import annotations

from torch import Tensor

from engine.cuda.mimi.chain import Chain
from engine.cuda.mimi.conv import convolve, first_block, residual_block
from engine.cuda.mimi.direction import Direction
from engine.cuda.mimi.quantizer import quantise
from engine.cuda.mimi.tiles import wide
from engine.cuda.mimi.weights import Matrix
from engine.mimi.codec import Mimi


class Encoder(Direction):
    """Convolutions, transformer and quantiser."""

    def __init__(self, chain: Chain, mimi: Mimi, pcm: Tensor, codes: Tensor) -> None:
        """pcm: [max_rows, frame_size] float32, which is read. codes: [max_rows, books] int32,
        which are written.
        """
        super().__init__(chain, mimi.config)
        encoder, config, dim = mimi.encoder, mimi.config.seanet, self.transformer.dim
        first, steps = encoder.stages[0][0].first, mimi.frame_size
        widths = [wide(config.n_filters << index) for index in range(len(encoder.stages) + 1)]
        inners = [wide((config.n_filters << i) // config.compress) for i in range(len(widths))]
        kept = [encoder.first.kept + first.kept]
        for index, (block, down) in enumerate(encoder.stages):
            # The first block is computed from samples.
            kept += [block.first.kept * widths[index]] * (index > 0) + [down.kept * widths[index]]
        kept += [encoder.last.kept * widths[-1], mimi.downsample.kept * dim]
        samples, *memories = chain.reserve(*kept)
        place = iter(memories)

        source = chain.windows(steps, widths[0], next(place))
        first_block(chain, encoder, pcm, samples, inners[0], source)
        for index, (block, down) in enumerate(encoder.stages):
            width, last = widths[index + 1], index == len(encoder.stages) - 1
            if index:
                blocked = chain.windows(steps, widths[index], next(place))
                residual_block(chain, source, block, inners[index], blocked)
                source = blocked
            matrix = Matrix.pack(down, widths[index], width, chain.dtype)
            steps //= down.stride
            reduced = chain.windows(steps, width, next(place))
            convolve(chain, source, matrix, reduced, elu_out=last)
            source = reduced
        matrix = Matrix.pack(encoder.last, widths[-1], dim, chain.dtype)
        convolve(chain, source, matrix, self.transformer.stream)
        latents = chain.windows(mimi.config.latents, dim, next(place))
        self.transformer.append(mimi.encoder_transformer.layers, latents, replicate=True)
        quantise(chain, mimi, latents, codes)

    def encode(self, rows: int, slot: Tensor) -> None:
        """Enqueues all launches."""
        self.chain.run(rows, slot)
