"""What is the same of Moshi, PersonaPlex and their kind, whatever computes them."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import replace

from engine.api import OpenParams
from engine.lm.config import LMConfig
from engine.mimi.codec import Mimi
from engine.model import ModelSpec
from engine.params import MAX_SEED, check_no_prompt, check_sampling, sampling_of
from engine.prompter import KeyedPrompt, Prompter
from engine.sampling import Sampling
from engine.text import TextStream, Tokenizer


class RQBase:
    """What the model says of itself, what sessions may ask of it, and the text that tokens say."""

    def __init__(
        self,
        name: str,
        config: LMConfig,
        mimi: Mimi,
        tokenizer: Tokenizer,
        prompter: Prompter | None,
        *,
        sampling: Sampling,
        seed: int | None,
        slots: int,
        slots_by_memory: bool,
        context: int,
        about: str,
        examples: tuple[str, ...],
        device: str,
        weight_bytes: int,
        slot_bytes: int,
    ) -> None:
        """sampling: for sessions that name none. seed: base of the seeds that are drawn for them.
        The others: see `ModelSpec`.
        """
        self._config, self._prompter, self._sampling = config, prompter, sampling
        self._seeds = random.Random(seed)
        self._text = [TextStream(tokenizer.pieces) for _ in range(slots)]
        self._spec = ModelSpec(
            name=name,
            sample_rate=mimi.sample_rate,
            frame_size=mimi.frame_size,
            # The calls of a prompt, of which there are always some, are the model's start-up.
            startup_frames=config.max_delay if prompter is None else 0,
            slots=slots,
            slots_by_memory=slots_by_memory,
            context=context,
            about=about,
            examples=examples,
            voices=() if prompter is None else prompter.voices.names,
            default_voice=None if prompter is None else prompter.default_voice,
            persona=prompter is not None,
            voice_audio=prompter is not None,
            text=True,
            sampling=True,
            device=device,
            weight_bytes=weight_bytes,
            slot_bytes=slot_bytes,
        )

    @property
    def spec(self) -> ModelSpec:
        """What the model can do."""
        return self._spec

    def check(self, params: OpenParams) -> None:
        """Raises BadParams, naming the field, for what the model can't take."""
        check_sampling(params, self._config)
        if self._prompter is None:
            check_no_prompt(params, self._spec.name)
        else:
            self._prompter.check(params)

    def _sampling_of(self, params: OpenParams) -> Sampling:
        """A session's sampling, with a seed that is drawn for it if it names none."""
        drawn = replace(self._sampling, seed=self._seeds.randint(0, MAX_SEED))
        return sampling_of(params, drawn)

    def _prompt_of(self, params: OpenParams) -> Generator[None, None, KeyedPrompt | None]:
        """A session's voice and persona; None for a model that takes no prompts.

        Yields between pieces of work. Raises BadParams for a silent recording of a voice.
        """
        if self._prompter is None:
            return None
        return (yield from self._prompter.build(params))

    def _say(self, rows: Sequence[int], tokens: Sequence[int]) -> list[str]:
        """What each row's next text token adds to its text. tokens: below 0 without a frame."""
        return [
            self._text[row].push(token) if token >= 0 else ""
            for row, token in zip(rows, tokens, strict=True)
        ]

    def _reset_text(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._text[row].reset()
