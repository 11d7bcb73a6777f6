"""Turn clip placements into waveforms on the training device, and roughen them.

A placement is a row of a float64 [n, 6] tensor on the CPU: batch row, clip number, start sample,
playback rate, gain, and the longest length in samples (-1: all of it).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.nano.clips import SAMPLE_RATE, Clips

CURVE_TERMS, CURVE_DB = 6, 2.5  # a random smooth response: cosines over the octaves, in dB
USER_RATE = (0.8, 1.25)  # of people's clips: pace and pitch
NO_PLACEMENTS = torch.zeros(0, 6, dtype=torch.float64)


class ClipBank:
    """The clips on a device, for mixing."""

    def __init__(self, clips: Clips, device: str) -> None:
        self.device = torch.device(device)
        self._pcm = torch.from_numpy(clips.pcm).to(self.device)
        self._start = torch.from_numpy(clips.start).to(self.device)
        self._length = torch.from_numpy(clips.length)

    def place(self, placements: Tensor, rows: int, samples: int, fade_s: float = 0.03) -> Tensor:
        """Sum of all placements -> [rows, samples]. A shortened clip fades out over `fade_s`."""
        device = self.device
        out = torch.zeros(rows * samples, device=device)
        if not len(placements):
            return out.view(rows, samples)
        full = (self._length[placements[:, 1].long()] / placements[:, 3]).floor().long() - 1
        cut = placements[:, 5] >= 0
        length = torch.where(cut, torch.minimum(full, placements[:, 5].long()), full)
        zero, one = torch.zeros((), device=device), torch.ones((), device=device)
        for order in torch.split(length.argsort(), 128):
            width = int(length[order[-1]]) + 1
            if width < 2:
                continue
            p = placements[order].to(device, non_blocking=True)
            n = length[order].to(device, non_blocking=True)[:, None]
            was_cut = cut[order].to(device, non_blocking=True)[:, None]
            t = torch.arange(width, device=device)[None]
            source = t * p[:, 3:4]
            whole = source.floor()
            part = (source - whole).float()
            index = (whole.long() + self._start[p[:, 1].long()][:, None]).clamp(
                max=len(self._pcm) - 2
            )
            x = self._pcm[index].float() * (1 - part) + self._pcm[index + 1].float() * part
            x = x / 32768 * p[:, 4:5].float()
            x = x * torch.where(was_cut, ((n - t) / (fade_s * SAMPLE_RATE)).clamp(0, 1), one)
            at = p[:, 2:3].long() + t
            inside = (t < n) & (at >= 0) & (at < samples)
            flat = p[:, :1].long() * samples + at.clamp(0, samples - 1)
            out.index_add_(0, flat.flatten(), torch.where(inside, x, zero).flatten())
        return out.view(rows, samples)


@cache  # some thousand numbers are tried
def _fft_size(n: int) -> int:
    """The next size that factors into 2, 3 and 5."""
    while True:
        m = n
        for f in (2, 3, 5):
            while m % f == 0:
                m //= f
        if m == 1:
            return n
        n += 1


def coloured_noise(rows: int, samples: int, device: torch.device) -> Tensor:
    """Unit-power noise [rows, samples] whose power falls as 1/f^0 .. 1/f^2."""
    n = _fft_size(samples)
    spectrum = torch.fft.rfft(torch.randn(rows, n, device=device))
    bins = torch.arange(spectrum.shape[1], device=device).clamp(min=8).float() / 100
    slope = torch.empty(rows, 1, device=device).uniform_(0, 1)
    x = torch.fft.irfft(spectrum * bins**-slope, n)[:, :samples]
    unit: Tensor = x / x.pow(2).mean(1, keepdim=True).sqrt()
    return unit


def bend_formants(x: Tensor, factor: Tensor) -> Tensor:
    """Move each row's spectral envelope by `factor` [rows, 1] and leave its pitch: other throats.

    The envelope is the low-quefrency part of the log spectrum. `x` is [rows, samples].
    """
    n_fft, hop, quefrencies = 1024, 256, 48
    window = torch.hann_window(n_fft, device=x.device)
    spectrum = torch.stft(x, n_fft, hop, window=window, return_complex=True)
    log = (spectrum.abs() + 1e-4).log()
    cepstrum = torch.fft.irfft(log, n_fft, dim=1)
    cepstrum[:, quefrencies : n_fft - quefrencies + 1] = 0
    envelope = torch.fft.rfft(cepstrum, n_fft, dim=1).real
    bins = envelope.shape[1]
    source = (torch.arange(bins, device=x.device) / factor).clamp(max=bins - 1)
    low = source.floor().long()
    part = (source - low)[..., None]

    def at(index: Tensor) -> Tensor:
        shifted: Tensor = envelope.gather(1, index[..., None].expand(-1, -1, envelope.shape[2]))
        return shifted

    moved = at(low) * (1 - part) + at((low + 1).clamp(max=bins - 1)) * part
    gain = (moved - envelope).clamp(-3, 3).exp()
    return torch.istft(spectrum * gain, n_fft, hop, window=window, length=x.shape[1])


def dynamics(x: Tensor, power: Tensor) -> Tensor:
    """Make what is soft softer (`power` [rows, 1] above 0) or louder (below), by 12 dB at most:
    as expanders and compressors in telephones do, and as people pronounce clearly or not.
    """
    window, hop = 480, 120
    level = F.avg_pool1d(x.abs()[:, None], window, hop, window // 2, count_include_pad=False)
    level = F.interpolate(level, x.shape[1], mode="linear")[:, 0] + 1e-4
    gain = (level / level.amax(1, keepdim=True)) ** power
    return x * gain.clamp(0.25, 4)


def speech_level(x: Tensor, threshold: float = 0.02) -> Tensor:
    """Root mean square of what is louder than `threshold`, [rows, 1]; 0.1 in silent rows."""
    loud = x.abs() > threshold
    count = loud.sum(1, keepdim=True)
    power = x.pow(2).mul(loud).sum(1, keepdim=True) / count.clamp(min=1)
    return torch.where(count > 0, power, 0.01).sqrt()


def augment(
    x: Tensor,
    *,
    reverb: float = 0.6,
    noise: float = 0.8,
    tilt: float = 0.5,
    colour: float = 0.5,
    throats: float = 0.7,
    dynamic: float = 0.5,
    snr_db: tuple[float, float] = (8, 42),
    gain_db: tuple[float, float] = (-20, 3),
) -> Tensor:
    """A person and a microphone: formants, dynamics, tilt, colour, band limit, room, gain, noise.

    `x` is [rows, samples]; the first numbers are the share of rows that get each. Noise is
    `snr_db` below the speech.
    """
    rows, samples = x.shape
    device = x.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(rows, 1, device=device).uniform_(low, high)

    def chance(p: float) -> Tensor:
        return (torch.rand(rows, 1, device=device) < p).float()

    bent = bend_formants(x, uniform(0.78, 1.28))
    x = torch.where(chance(throats) > 0, bent, x)
    x = dynamics(x, uniform(-0.3, 0.5) * chance(dynamic))
    tail = 8192
    n = _fft_size(samples + tail)
    spectrum = torch.fft.rfft(x, n)
    hz = torch.arange(spectrum.shape[1], device=device) / n * SAMPLE_RATE
    response = (hz.clamp(min=60) / 1000) ** (uniform(-0.35, 0.35) * chance(tilt))
    curve = torch.randn(rows, CURVE_TERMS, device=device) * CURVE_DB * chance(colour)
    octave = (hz.clamp(min=60) / 60).log2()
    turns = torch.arange(1, CURVE_TERMS + 1, device=device)[:, None] * octave / octave[-1]
    response = response * 10 ** (curve @ torch.cos(torch.pi * turns) / 20)
    corner = torch.where(chance(0.3) > 0, uniform(3000, 8000), uniform(20_000, 30_000))
    response = response / (1 + (hz / corner) ** 4).sqrt()
    t = torch.arange(tail, device=device) / SAMPLE_RATE
    decay = torch.exp(-t * 6.9 / uniform(0.08, 0.5)) * (t > 0.002)
    room = torch.randn(rows, tail, device=device) * decay
    room = room / room.pow(2).sum(1, keepdim=True).sqrt() * uniform(0.1, 0.7) * chance(reverb)
    room[:, 0] += 1
    wet = torch.fft.irfft(spectrum * response * torch.fft.rfft(room, n), n)[:, :samples]
    floor = speech_level(x) * 10 ** (-uniform(*snr_db) / 20) * chance(noise)
    gain = 10 ** (uniform(*gain_db) / 20)
    out: Tensor = ((wet + coloured_noise(rows, samples, device) * floor) * gain).clamp(-1, 1)
    return out
