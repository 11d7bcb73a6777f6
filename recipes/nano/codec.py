"""The whole codec in training form, and its export to Mimi's tensor layout."""

from typing import cast

import torch
from torch import Tensor, nn

from recipes.nano.mimi import (
    INPUT_GAIN,
    CausalConv,
    CausalUpconv,
    MimiConfig,
    MimiTransformer,
    Named,
    Residual,
    seanet_decoder,
    seanet_encoder,
)
from recipes.nano.quantizer import Branch, Codebook, Quantised, SplitQuantizer

HOP = 1920


class Codec(nn.Module):
    """24 kHz audio [batch, 1, samples] <-> codes [batch, 8, frames], 1920 samples a frame."""

    def __init__(self, config: MimiConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or MimiConfig()
        self.encoder = Named(model=seanet_encoder(c))
        self.encoder_transformer = MimiTransformer(c)
        self.downsample = Named(conv=CausalConv(c.dim, c.dim, 4, 2, replicate=True))
        self.quantizer = SplitQuantizer(c)
        self.upsample = Named(convtr=CausalUpconv(c.dim, c.dim, 2, depthwise=True))
        self.decoder_transformer = MimiTransformer(c)
        self.decoder = Named(model=seanet_decoder(c))
        self._initialise()

    def _initialise(self) -> None:
        """Unit gain and zero biases: otherwise biases drown the signal and latents are alike."""
        for m in self.modules():
            if isinstance(m, CausalConv):
                fan = m.weight_conv.in_channels * m.weight_conv.kernel_size[0]
            elif isinstance(m, CausalUpconv):
                fan = m.weight_conv.in_channels // m.weight_conv.groups * 2
            else:
                continue
            nn.init.normal_(m.weight_conv.weight, std=(1.6 / fan) ** 0.5)
            if m.weight_conv.bias is not None:
                nn.init.zeros_(m.weight_conv.bias)
        for m in self.modules():
            if isinstance(m, Residual):
                cast(CausalConv, m.block[3]).weight_conv.weight.data.mul_(0.5)
        last = cast(CausalConv, cast(nn.Sequential, self.decoder.model)[-1])
        last.weight_conv.weight.data.mul_(0.1)

    def latent(self, pcm: Tensor) -> Tensor:
        """[batch, 1, samples] -> [batch, dim, frames], not yet quantised."""
        x = self.encoder.model(pcm * INPUT_GAIN)  # type: ignore[operator]
        out: Tensor = self.downsample.conv(self.encoder_transformer(x))  # type: ignore[operator]
        return out

    def wave(self, latent: Tensor) -> Tensor:
        """[batch, dim, frames] -> [batch, 1, samples]."""
        x = self.decoder_transformer(self.upsample.convtr(latent))  # type: ignore[operator]
        out: Tensor = self.decoder.model(x)  # type: ignore[operator]
        return out

    def forward(
        self, pcm: Tensor, *, skip: int = 0, bypass: bool = False, seed: bool = False,
        revive: bool = False, decoded: int | None = None,
    ) -> tuple[Tensor, Quantised]:  # fmt: skip
        """Code all rows and decode the first `decoded` of them (all, if None).

        The decoder starts afresh `skip` frames into the stream.
        """
        z = self.latent(pcm)
        with torch.autocast(z.device.type, enabled=False):
            q = self.quantizer(z.float(), bypass=bypass, seed=seed, revive=revive)
        return self.wave(q.latent[:decoded, :, skip:].to(pcm.dtype)), q

    @torch.no_grad()
    def encode(self, pcm: Tensor) -> Tensor:
        """[batch, 1, samples] -> [batch, 8, frames]."""
        codes: Tensor = self.quantizer(self.latent(pcm)).codes
        return codes

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        return self.wave(self.quantizer.decode(codes))


def _export_branch(prefix: str, branch: Branch, state: dict[str, Tensor]) -> None:
    """Fold the norm: its scale into the projection, its offset into the branch's first book."""
    variance = cast(Tensor, branch.norm.running_var)
    scale = 1 / (variance + branch.norm.eps).sqrt()
    state[f"{prefix}.input_proj.weight"] = branch.input_proj.weight * scale[:, None, None]
    state[f"{prefix}.output_proj.weight"] = branch.output_proj.weight
    for k, book in enumerate(cast("list[Codebook]", list(branch.books))):
        key = f"{prefix}.vq.layers.{k}._codebook"
        state[f"{key}.embedding_sum"] = book.embedding + (branch.offset if k == 0 else 0)
        state[f"{key}.cluster_usage"] = torch.ones(len(book.embedding))
        state[f"{key}._initialized"] = torch.ones(1)


@torch.no_grad()
def export_state(codec: Codec, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """The state dict in Mimi's layout, ready for the ordinary engine."""
    state = {k: v for k, v in codec.state_dict().items() if not k.startswith("quantizer.")}
    first = "encoder.model.0.conv.conv.weight"
    state[first] = state[first] * INPUT_GAIN
    _export_branch("quantizer.rvq_first", codec.quantizer.rvq_first, state)
    _export_branch("quantizer.rvq_rest", codec.quantizer.rvq_rest, state)
    return {k: v.detach().to("cpu", dtype).contiguous() for k, v in state.items()}
