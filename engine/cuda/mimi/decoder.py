"""Mimi's decoder on a GPU: codes to samples."""

from __future__ import annotations

from torch import Tensor

from engine.cuda.mimi.chain import Chain
from engine.cuda.mimi.conv import convolve, last_conv, residual_block
from engine.cuda.mimi.direction import Direction
from engine.cuda.mimi.quantizer import Dequantiser
from engine.cuda.mimi.tiles import wide
from engine.cuda.mimi.weights import Matrix
from engine.mimi.codec import Mimi


class Decoder(Direction):
    """Dequantiser, transformer and convolutions."""

    def __init__(self, chain: Chain, mimi: Mimi, sound: Tensor) -> None:
        """sound: [max_rows, frame_size] float32, which is written."""
        super().__init__(chain, mimi.config)
        decoder, config, dim = mimi.decoder, mimi.config.seanet, self.transformer.dim
        count = len(decoder.stages)
        widths = [wide(config.decoder << (count - index)) for index in range(count + 1)]
        inners = [
            wide((config.decoder << (count - index)) // config.compress)
            for index in range(count + 1)
        ]
        kept = [dim, decoder.first.kept * dim]
        for index, (up, block) in enumerate(decoder.stages):
            kept += [up.kept * widths[index], block.first.kept * widths[index + 1]]
        kept.append(decoder.last.kept * widths[-1])
        latent, *memories = chain.reserve(*kept)
        place = iter(memories)

        self._dequantise = Dequantiser(chain, mimi, self.transformer.x, latent)
        steps = mimi.config.latents
        source = chain.windows(steps, dim, next(place))
        self.transformer.append(mimi.decoder_transformer.layers, source, replicate=False)
        matrix = Matrix.pack(decoder.first, dim, widths[0], chain.dtype)
        grown = chain.windows(steps, widths[0], next(place))
        convolve(chain, source, matrix, grown, elu_out=True)
        source = grown
        for index, (up, block) in enumerate(decoder.stages):
            width = widths[index + 1]
            stride = config.ratios[index]
            matrix = Matrix.pack(up, widths[index], width, chain.dtype, groups=stride)
            steps *= stride
            grown = chain.windows(steps, width, next(place))
            convolve(chain, source, matrix, grown)
            blocked = chain.windows(steps, width, next(place))
            residual_block(chain, grown, block, inners[index + 1], blocked)
            source = blocked
        last_conv(chain, decoder.last, source, sound)

    def decode(self, rows: int, slot: Tensor, codes: Tensor) -> None:
        """Enqueues all launches for codes [max_rows, books] int32."""
        self._dequantise(rows, slot, codes)
        self.chain.run(rows, slot)
