"""Temperature and top-k sampling whose draws depend on nothing but a session's seed and position.

The noise of a token is a hash of (seed, call, channel, token id), so a session draws the same on
any row, in any batch and on any device. Gumbel-max turns it into a sample of the softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.rows import Rows

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_COLDEST = 1e-6
"""Below this temperature the likeliest token is taken: logits divided by it may be infinite."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a session samples. Raises ValueError, naming the field, for what can't be."""

    text_temperature: float = 0.7
    """0 is greedy."""
    text_top_k: int = 25
    """The most likely tokens kept, ties with the last one included; 0 keeps all."""
    audio_temperature: float = 0.8
    audio_top_k: int = 250
    seed: int = 0
    """Any integer; its low 64 bits count."""

    def __post_init__(self) -> None:
        for name in ("text_temperature", "audio_temperature"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be finite and not below 0, not {value}")
        for name in ("text_top_k", "audio_top_k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0, not {getattr(self, name)}")


GREEDY = Sampling(text_temperature=0, audio_temperature=0)


class _Head:
    """The parameters of every slot row for tokens of one kind."""

    def __init__(self, slots: int, channels: range, card: int, device: torch.device | str) -> None:
        self.card = card
        self.kept = [1] * slots
        """Top-k of each row, on the host. 1 is greedy."""
        self.temperature = torch.ones(slots, 1, device=device)
        self.noise = torch.zeros(slots, 1, 1, device=device)
        """The noise's factor: 0 for greedy rows, 1 for others."""
        self.floor = torch.zeros(slots, 1, dtype=torch.int64, device=device)
        """Rank of the last token that is kept."""
        self.channels = torch.arange(channels.start, channels.stop, device=device)
        self.steps = torch.arange(card, device=device) * _signed(_GOLDEN)

    def set(self, row: int, temperature: float, top_k: int) -> None:
        kept = kept_tokens(temperature, top_k, self.card)
        greedy = kept == 1
        self.kept[row] = kept
        self.temperature[row] = 1 if greedy else temperature
        self.noise[row] = 0 if greedy else 1
        self.floor[row] = kept - 1


class RowSampling:
    """The sampling parameters of every slot row: channel 0 is text, the others are audio."""

    def __init__(
        self,
        slots: int,
        text_card: int,
        card: int,
        books: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._keys = torch.zeros(slots, 1, dtype=torch.int64, device=device)
        self._text = _Head(slots, range(1), text_card, device)
        self._audio = _Head(slots, range(1, 1 + books), card, device)
        self.rows = [Sampling()] * slots
        """Each row's parameters; changed by `set` only."""
        for row in range(slots):
            self.set(row, Sampling())

    def set(self, row: int, sampling: Sampling) -> None:
        """Gives a row its parameters."""
        self.rows[row] = sampling
        self._keys[row] = seed_key(sampling.seed)
        self._text.set(row, sampling.text_temperature, sampling.text_top_k)
        self._audio.set(row, sampling.audio_temperature, sampling.audio_top_k)

    def reset(self, rows: Rows) -> None:
        """Gives the rows the defaults."""
        for row in rows.rows:
            self.set(row, Sampling())

    def draw(self, rows: Rows, calls: Tensor) -> Draw:
        """The draws of one step. calls: [n] int64, the number of each row's step."""
        keys = rows.take(self._keys)
        return Draw(_Draws(self._text, rows, keys, calls), _Draws(self._audio, rows, keys, calls))


class _Draws:
    """One step's draws of one kind, for all its channels."""

    def __init__(self, head: _Head, rows: Rows, keys: Tensor, calls: Tensor) -> None:
        kept = [head.kept[row] for row in rows.rows]
        self._most = max(kept)
        self._cuts = min(kept) < head.card
        if self._most > 1:
            self._temperature = rows.take(head.temperature)
            self._floor = rows.take(head.floor)
            streams = _mix(keys ^ ((calls[:, None] << 8) + head.channels))
            noise = _gumbel(_mix(streams[:, :, None] + head.steps))
            self._noise = noise.mul_(rows.take(head.noise)).unbind(1)

    def __call__(self, place: int, logits: Tensor) -> Tensor:
        if self._most == 1:
            return logits.argmax(-1)
        scores = logits.float() / self._temperature
        if self._cuts:
            floor = scores.topk(self._most).values.gather(1, self._floor)
            scores = scores.masked_fill(scores < floor, -torch.inf)
        return (scores + self._noise[place]).argmax(-1)


@dataclass(frozen=True, slots=True)
class Draw:
    """Samples the tokens of one step, channel by channel."""

    _text: _Draws
    _audio: _Draws

    def text(self, logits: Tensor) -> Tensor:
        """[n, text_card] -> [n] int64."""
        return self._text(0, logits)

    def audio(self, book: int, logits: Tensor) -> Tensor:
        """[n, card] -> [n] int64."""
        return self._audio(book, logits)


def seed_key(seed: int) -> int:
    """What the draws of a seed are hashed from, as a signed number of 64 bits."""
    return _signed(_mix_int(seed & _MASK))


def kept_tokens(temperature: float, top_k: int, card: int) -> int:
    """How many of `card` tokens can be drawn; 1 is greedy."""
    return 1 if temperature < _COLDEST else min(top_k or card, card)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> 30)) * _MIX_1 & _MASK
    value = (value ^ (value >> 27)) * _MIX_2 & _MASK
    return value ^ (value >> 31)


def _mix(z: Tensor) -> Tensor:
    """The same on int64, in place; its shifts bring in the sign, which the masks take out."""
    z ^= (z >> 30) & (_MASK >> 30)
    z *= _signed(_MIX_1)
    z ^= (z >> 27) & (_MASK >> 27)
    z *= _signed(_MIX_2)
    z ^= (z >> 31) & (_MASK >> 31)
    return z


def _gumbel(z: Tensor) -> Tensor:
    """Gumbel noise from 23 bits, so that the uniform number is exact and inside (0, 1)."""
    uniform = ((z >> 41) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()
