"""Turns a session's voice and persona into the model's prompt."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.api import BadParams, EngineError, OpenParams, Pcm
from engine.lm.config import LMConfig
from engine.lm.prompt import Prompt, SavedVoice, build_prompt
from engine.mimi.codec import Mimi
from engine.text import Tokenizer
from engine.voice_files import Recording, check_recording, recording
from engine.voices import VoiceRegistry, encode_recording

MAX_PERSONA: Final = 16_384
"""Characters; how many tokens depends on the model's context."""
_KEPT_RECORDINGS: Final = 64


@dataclass(frozen=True, slots=True)
class KeyedPrompt:
    """A prompt and the key under which what was computed for it is kept."""

    prompt: Prompt
    key: tuple[str, tuple[int, ...]]
    """The voice and the persona's tokens."""


class Prompter:
    """The voices and the tokenizer of one model."""

    def __init__(
        self,
        config: LMConfig,
        mimi: Mimi,
        tokenizer: Tokenizer,
        voices: VoiceRegistry,
        *,
        default_voice: str | None,
        device: torch.device,
    ) -> None:
        """default_voice: None leaves sessions that name none without one.

        Raises EngineError for a default voice that isn't there, for a voice that doesn't fit, and
        for a model that can't be prompted.
        """
        self._config, self._mimi, self._tokenizer, self._device = config, mimi, tokenizer, device
        self.voices = voices
        self.default_voice = default_voice
        self._codes: OrderedDict[str, Tensor] = OrderedDict()
        if default_voice is not None and default_voice not in voices.names:
            raise EngineError(f"default_voice {default_voice!r} isn't among the voices")
        build_prompt(config, None, ())
        for name in voices.names:
            voice = voices.get(name)
            if not isinstance(voice, Recording):
                try:
                    build_prompt(config, voice, ())
                except ValueError as error:
                    raise EngineError(f"voice {name}: {error}") from error

    def check(self, params: OpenParams) -> None:
        """Raises BadParams for a voice, persona or recording that can't be taken."""
        if params.voice is not None:
            self.voices.find(params.voice)
        if params.persona is not None:
            self._tokens(params.persona)
        if params.voice_audio is not None:
            if params.voice is not None:
                raise BadParams("voice_audio", "voice and voice_audio exclude each other")
            self._pcm(params.voice_audio)

    def build(self, params: OpenParams) -> Generator[None, None, KeyedPrompt]:
        """The prompt of checked parameters; yields between pieces of work.

        Raises BadParams for a silent recording.
        """
        name = ""
        voice: Tensor | SavedVoice | None = None
        if params.voice_audio is not None:
            name = f"sha256:{hashlib.sha256(params.voice_audio).hexdigest()}"
            voice = yield from self._client_codes(name, params.voice_audio)
        elif params.voice is not None or self.default_voice is not None:
            name = self.voices.find(params.voice or self.default_voice or "")
            voice = yield from self._registered(name)
        tokens = self._tokens(params.persona or "")
        return KeyedPrompt(build_prompt(self._config, voice, tokens), (name, tuple(tokens)))

    def _registered(self, name: str) -> Generator[None, None, Tensor | SavedVoice]:
        voice = self.voices.get(name)
        if isinstance(voice, Recording):
            voice = yield from encode_recording(self._mimi, voice, self._device)
            self.voices.keep(name, voice)
        return voice

    def _client_codes(self, key: str, audio: bytes) -> Generator[None, None, Tensor]:
        """The codes of a client's recording; those used last are kept."""
        codes = self._codes.get(key)
        if codes is None:
            try:
                heard = recording(self._pcm(audio), self._mimi.sample_rate)
            except ValueError as error:
                raise BadParams("voice_audio", f"voice_audio: {error}") from error
            codes = yield from encode_recording(self._mimi, heard, self._device)
        self._codes[key] = codes
        self._codes.move_to_end(key)
        if len(self._codes) > _KEPT_RECORDINGS:
            self._codes.popitem(last=False)
        return codes

    def _tokens(self, persona: str) -> list[int]:
        """Its tokens, at most half of what the model can remember."""
        if len(persona) > MAX_PERSONA:
            raise BadParams("persona", f"persona has more than {MAX_PERSONA} characters")
        tokens = self._tokenizer.encode_persona(persona)
        most = self._config.context // 2
        if len(tokens) > most:
            raise BadParams("persona", f"persona has {len(tokens)} tokens, more than {most}")
        return tokens

    def _pcm(self, audio: bytes) -> Pcm:
        if len(audio) % 4:
            raise BadParams("voice_audio", "voice_audio must be float32 samples of 4 bytes")
        pcm = np.frombuffer(audio, "<f4").astype(np.float32)
        try:
            check_recording(pcm, self._mimi.sample_rate)
        except ValueError as error:
            raise BadParams("voice_audio", f"voice_audio: {error}") from error
        return pcm
