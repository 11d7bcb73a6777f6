"""What the codec is trained against: mel distance, spectrogram discriminators, characters."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

SAMPLE_RATE = 24_000
MEL_SIZES = ((512, 40), (1024, 80), (2048, 100))
ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'"


def mel_filters(n_fft: int, n_mels: int) -> Tensor:
    """Triangular filters with unit area, [n_mels, n_fft // 2 + 1]."""
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    mels = torch.linspace(0, top, n_mels + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hz = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise = (hz - low) / (mid - low).clamp(min=1e-6)
    fall = (high - hz) / (high - mid).clamp(min=1e-6)
    bank = torch.minimum(rise, fall).clamp(min=0)
    return bank / bank.sum(1, keepdim=True).clamp(min=1e-6)


class MelLoss(nn.Module):
    """Distance of log and linear mel spectra at three window sizes.

    The logarithm has a floor near -60 dBFS: digital silence must not rule the gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        for n, mels in MEL_SIZES:
            self.register_buffer(f"window{n}", torch.hann_window(n), persistent=False)
            self.register_buffer(f"bank{n}", mel_filters(n, mels), persistent=False)

    def _mel(self, x: Tensor, n: int) -> Tensor:
        window = cast(Tensor, getattr(self, f"window{n}"))
        spectrum = torch.stft(x[:, 0], n, n // 4, n, window, return_complex=True).abs()
        return cast(Tensor, getattr(self, f"bank{n}")) @ spectrum

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """[batch, 1, samples] twice, and how much each row counts [batch] -> scalar."""
        loss = torch.zeros((), device=x.device)
        share = weight[:, None, None] / weight.mean()
        for n, _ in MEL_SIZES:
            a, b = self._mel(x, n), self._mel(y, n)
            floor = 0.02 * (n / 1024) ** 0.5
            far = (torch.log10(a + floor) - torch.log10(b + floor)).abs() + 0.1 * (a - b).abs()
            loss = loss + (far * share).mean()
        return loss / len(MEL_SIZES)


class EnvelopeLoss(nn.Module):
    """One minus the correlation of band envelopes over 0.38 s: what STOI calls intelligibility.

    15 third-octave bands from 150 Hz; segments more than 40 dB below the loudest do not count.
    Bands and segment length: Taal et al., IEEE TASLP 19(7), 2011.
    """

    WINDOW, HOP, N_FFT, FRAMES, STEP = 614, 307, 1024, 30, 10

    def __init__(self) -> None:
        super().__init__()
        centre = 150 * 2 ** (torch.arange(15) / 3)
        hz = torch.linspace(0, SAMPLE_RATE / 2, self.N_FFT // 2 + 1)[None]
        low, high = centre[:, None] * 2 ** (-1 / 6), centre[:, None] * 2 ** (1 / 6)
        self.register_buffer("bands", ((hz >= low) & (hz < high)).float(), persistent=False)
        self.register_buffer("window", torch.hann_window(self.WINDOW), persistent=False)

    def _segments(self, x: Tensor) -> Tensor:
        """[batch, 1, samples] -> envelopes [batch, bands, segments, frames]."""
        spectrum = torch.stft(
            x[:, 0], self.N_FFT, self.HOP, self.WINDOW, cast(Tensor, self.window),
            return_complex=True,
        )  # fmt: skip
        power = cast(Tensor, self.bands) @ spectrum.abs().pow(2)
        return (power + 1e-6).sqrt().unfold(-1, self.FRAMES, self.STEP)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """`x` is the original, `y` what came out; returns a scalar between 0 and 2."""
        a, b = self._segments(x), self._segments(y)
        level = a.pow(2).sum((1, 3))
        heard = (level > level.amax(1, keepdim=True) * 1e-4).float()[:, None]
        a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
        match = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-3)
        apart: Tensor = (1 - match) * heard
        return apart.sum() / (heard.sum() * a.shape[1]).clamp(min=1)


class StftDiscriminator(nn.Module):
    """2-D convolutions over a complex spectrogram."""

    def __init__(self, n_fft: int, channels: int = 32) -> None:
        super().__init__()
        self.n_fft = n_fft
        wide, c = (3, 9), channels
        convs = [nn.Conv2d(2, c, wide, padding=(1, 4))]
        convs += [nn.Conv2d(c, c, wide, (1, 2), dilation=(d, 1), padding=(d, 4)) for d in (1, 2, 4)]
        convs.append(nn.Conv2d(c, c, 3, padding=1))
        self.convs = nn.ModuleList(weight_norm(conv) for conv in convs)
        self.out = weight_norm(nn.Conv2d(c, 1, 3, padding=1))
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(x.device.type, enabled=False):
            window = cast(Tensor, self.window)
            z = torch.stft(
                x.float()[:, 0], self.n_fft, self.n_fft // 4, self.n_fft, window,
                normalized=True, return_complex=True,
            )  # fmt: skip
        h = torch.stack([z.real, z.imag], 1).transpose(2, 3)
        features = []
        for conv in self.convs:
            h = F.leaky_relu(conv(h), 0.2)
            features.append(h)
        return self.out(h), features


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ModuleList(StftDiscriminator(n) for n in (2048, 1024, 512))

    def forward(self, x: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        return [d(x) for d in self.scales]


class CharacterHead(nn.Module):
    """Reads characters off codec vectors (50 a second); only training uses it.

    It stands in for the distillation by which Mimi's first book carries what is said.
    """

    def __init__(self, dim: int, hidden: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.wide = nn.Conv1d(dim, hidden, 5, padding=2)
        self.mix = nn.Conv1d(hidden, hidden, 3, padding=1)
        self.out = nn.Conv1d(hidden, 4 * len(ALPHABET), 1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, frames, dim] -> [batch, 4 * frames, characters] logits."""
        h = F.gelu(self.wide(self.norm(x).transpose(1, 2)))
        h = h + F.gelu(self.mix(h))
        out: Tensor = self.out(h).transpose(1, 2)
        return out.reshape(len(x), -1, len(ALPHABET))


def character_loss(logits: Tensor, texts: list[str | None]) -> Tensor:
    """CTC loss a character; rows whose text is unknown (None) do not count."""
    device = logits.device
    ids = [[ALPHABET.index(c) for c in t] if t else [] for t in texts]
    lengths = torch.tensor([len(i) for i in ids])
    longest = max(1, int(lengths.max()))
    targets = torch.tensor([i + [0] * (longest - len(i)) for i in ids])
    known = torch.tensor([float(t is not None) for t in texts]).to(device, non_blocking=True)
    steps = torch.full((len(ids),), logits.shape[1])
    loss = F.ctc_loss(
        F.log_softmax(logits.float(), -1).transpose(0, 1), targets.to(device, non_blocking=True),
        steps, lengths, reduction="none", zero_infinity=True,
    )  # fmt: skip
    per_character = loss / lengths.clamp(min=1).to(device, non_blocking=True)
    return (per_character * known).sum() / known.sum().clamp(min=1)


def adversarial_losses(
    real: list[tuple[Tensor, list[Tensor]]], fake: list[tuple[Tensor, list[Tensor]]]
) -> tuple[Tensor, Tensor]:
    """(generator loss, feature matching) of one batch."""
    fool = torch.stack([-score.float().mean() for score, _ in fake]).mean()
    distances = [
        (a.detach().float() - b.float()).abs().mean() / a.detach().float().abs().mean()
        for (_, fa), (_, fb) in zip(real, fake, strict=True)
        for a, b in zip(fa, fb, strict=True)
    ]
    return fool, torch.stack(distances).mean()


def discriminator_loss(
    real: list[tuple[Tensor, list[Tensor]]], fake: list[tuple[Tensor, list[Tensor]]]
) -> Tensor:
    """Hinge loss."""
    return torch.stack(
        [
            F.relu(1 - r.float()).mean() + F.relu(1 + f.float()).mean()
            for (r, _), (f, _) in zip(real, fake, strict=True)
        ]
    ).mean()
