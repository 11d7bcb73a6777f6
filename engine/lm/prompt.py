"""System prompts of PersonaPlex: a voice, silence, a text and silence, a frame each, forced.

Frame j of a channel's prompt belongs in column j + delay of the token grid; call o reads column o
and fills column o + 1. So of a prompt of P frames columns 0..P-1 are wholly forced, and of column
P only the channels that come a frame late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from engine.checkpoint import CheckpointError

if TYPE_CHECKING:
    from engine.lm.config import LMConfig

FREE = -2
"""In a forced column: a token that is not forced."""


class PromptCodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The frames that prompts are padded with. The defaults are PersonaPlex's own."""

    silence_codes: tuple[int, ...] = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
    """An agent frame of silence."""
    user_codes: tuple[int, ...] = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
    """The user's frame throughout a prompt: a sine."""
    silence_frames: int = 6
    """Before the text, and again after it."""

    def check(self, books: int, card: int) -> None:
        """Raises CheckpointError if these aren't frames of a model of `books` x `card` codes."""
        for name in ("silence_codes", "user_codes"):
            codes = getattr(self, name)
            if len(codes) != books or not all(0 <= code < card for code in codes):
                raise CheckpointError(f"config: prompt.{name} must be {books} codes below {card}")
        if self.silence_frames < 0:
            raise CheckpointError("config: prompt.silence_frames must not be below 0")


@dataclass(frozen=True, slots=True)
class SavedVoice:
    """A voice of N frames as the model heard it, in the published files' form."""

    embeddings: Tensor
    """[N - 1, dim]: the input of positions 0..N-2."""
    cache: Tensor
    """[channels, columns] int64: the token ring after N frames; column c is at c modulo columns."""

    @classmethod
    def from_file(cls, embeddings: Tensor, cache: Tensor) -> SavedVoice:
        """From a file's tensors, [N - 1, 1, 1, dim] and [1, channels, columns].

        Raises ValueError, naming the tensor, if one isn't of that form.
        """
        if embeddings.ndim != 4 or embeddings.shape[1:3] != (1, 1) or not len(embeddings):
            raise ValueError(f"embeddings must be [n, 1, 1, dim], not {list(embeddings.shape)}")
        if cache.ndim != 3 or len(cache) != 1:
            raise ValueError(f"cache must be [1, channels, columns], not {list(cache.shape)}")
        return cls(embeddings[:, 0, 0], cache[0].long())


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of P frames on the token grid."""

    embeddings: Tensor | None
    """[S, dim]: the inputs of positions 0..S-1, where these are given instead of tokens."""
    columns: Tensor
    """[P - S + 1, channels] int64: columns S..P; FREE where column P isn't forced."""
    user: Tensor
    """[books] int64: the user's frame."""

    @property
    def frames(self) -> int:
        """P: the session's first real frame is call P."""
        replayed = 0 if self.embeddings is None else len(self.embeddings)
        return replayed + len(self.columns) - 1


def build_prompt(
    config: LMConfig, voice: Tensor | SavedVoice | None, text_tokens: Sequence[int]
) -> Prompt:
    """A prompt of a voice, given as codes [n, books] or as saved, and text tokens.

    Raises ValueError, naming the argument, for what the model can't take, and CheckpointError if
    the model has no codes for a prompt.
    """
    config.prompt.check(config.books, config.card)
    if config.max_delay > 1:
        raise CheckpointError("config: delays past one frame can't be prompted")
    if not all(0 <= token < config.text_card for token in text_tokens):
        raise ValueError(f"text_tokens must be below {config.text_card}")
    silence = _frames(config, config.prompt.silence_frames)
    spoken = _frames(config, len(text_tokens))
    spoken[:, 0] = torch.tensor(text_tokens, dtype=torch.int64)
    rest = [silence, spoken, silence]
    user = torch.tensor(config.prompt.user_codes)
    if isinstance(voice, SavedVoice):
        columns = _columns_after(config, voice, torch.cat(rest))
        return Prompt(voice.embeddings, columns, user)
    if voice is not None:
        if voice.ndim != 2 or voice.shape[1] != config.books:
            raise ValueError(f"voice must be [n, {config.books}], not {list(voice.shape)}")
        if len(voice) and not 0 <= int(voice.min()) <= int(voice.max()) < config.card:
            raise ValueError(f"voice codes must be below {config.card}")
        heard = _frames(config, len(voice))
        heard[:, 1 : 1 + config.books] = voice
        rest.insert(0, heard)
    return Prompt(None, _columns(config, torch.cat(rest)), user)


def _frames(config: LMConfig, count: int) -> Tensor:
    """Frames of agent silence, padding text and the user's sine: [count, channels]."""
    frame = (
        config.existing_text_padding_id,
        *config.prompt.silence_codes,
        *config.prompt.user_codes,
    )
    return torch.tensor(frame).repeat(count, 1)


def _columns(config: LMConfig, frames: Tensor) -> Tensor:
    """Columns 0..P of P frames. A channel's frame 0 is never seen: its initial token is."""
    columns = torch.full((len(frames) + 1, config.channels), FREE)
    for channel, delay in enumerate(config.delays):
        columns[: delay + 1, channel] = config.card if channel else config.text_card
        columns[delay + 1 : len(frames) + delay, channel] = frames[1:, channel]
    return columns


def _columns_after(config: LMConfig, voice: SavedVoice, rest: Tensor) -> Tensor:
    """Columns N-1..P: what a saved voice of N frames left in the grid, then the frames `rest`.

    Of column N the voice holds only the channels that come a frame late.
    """
    if voice.embeddings.shape[1] != config.dim:
        raise ValueError(f"embeddings must have dim {config.dim}, not {voice.embeddings.shape[1]}")
    channels, modulus = voice.cache.shape
    if channels != config.channels or modulus < 2:
        raise ValueError(f"cache must have {config.channels} channels and at least 2 columns")
    last = len(voice.embeddings)
    user = (0,) * (channels - config.books) + config.prompt.user_codes
    columns = torch.full((len(rest) + 2, channels), FREE)
    for channel, delay in enumerate(config.delays):
        for column in range(1 + delay):
            columns[column, channel] = voice.cache[channel, (last + column) % modulus]
        if channel > config.books:
            columns[delay, channel] = user[channel]
        columns[1 + delay : 1 + delay + len(rest), channel] = rest[:, channel]
        known = config.card if channel else config.text_card
        cached = columns[: 1 + delay, channel]
        if int(cached.min()) < 0 or int(cached.max()) > known:
            raise ValueError(f"cache has unknown tokens in channel {channel}")
    return columns
