"""The lockstep model of a codec and an RQ-transformer: sound in, sound and text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.api import OpenParams, Pcm
from engine.lm.model import RQTransformer
from engine.lm.prefix import PrefixCache
from engine.memory import check_slots, slots_that_fit
from engine.mimi.codec import Mimi
from engine.model import PrefixStats, Room, StepResult
from engine.prompter import Prompter
from engine.rows import Rows
from engine.rq_base import RQBase
from engine.sampling import Sampling
from engine.text import Tokenizer


class RQModel(RQBase):
    """Moshi, PersonaPlex and their kind as a `LockstepModel`.

    Rows are stepped in one of two ways. "ready": all rows that have a frame are one batch.
    "fixed": each is a launch of its own, on a copy of its state; then a session's output is the
    same to the last bit whoever shares the engine. For kernels choose their tiles, and so the
    order in which they sum, by the size of a batch and the alignment of its memory, and rounding
    follows the order; a launch of one copied row has always the same size and alignment. A prompt
    is a launch of its own either way.

    Build it in the thread that steps it: how a CPU treats denormal numbers is a thread's matter.
    """

    def __init__(
        self,
        name: str,
        lm: RQTransformer,
        mimi: Mimi,
        tokenizer: Tokenizer,
        prompter: Prompter | None,
        *,
        sampling: Sampling,
        slots: int | None,
        about: str = "",
        examples: tuple[str, ...] = (),
        step_mode: str = "ready",
        prefix_cache_bytes: int = 0,
        seed: int | None = None,
    ) -> None:
        """prompter: None for a model that takes no prompts. slots: None for as many as fit.

        sampling: for sessions that name none. seed: base of the seeds that are drawn for them.
        Raises EngineError, which says how many fit, if there isn't the memory for `slots`.
        """
        if lm.device.type == "cpu":
            # A fading sound or state would run into them, and they cost 100 times as much.
            torch.set_flush_denormal(True)
        slot_bytes = lm.state(1).nbytes + mimi.state(1).nbytes
        by_memory = slots is None
        if slots is None:
            slots = slots_that_fit(slot_bytes, lm.device, reserve=prefix_cache_bytes)
        check_slots(slots, slot_bytes, lm.device)
        super().__init__(
            name,
            lm.config,
            mimi,
            tokenizer,
            prompter,
            sampling=sampling,
            seed=seed,
            slots=slots,
            slots_by_memory=by_memory,
            context=lm.config.context,
            about=about,
            examples=examples,
            device=str(lm.device),
            weight_bytes=lm.weights.nbytes + mimi.nbytes,
            slot_bytes=slot_bytes,
        )
        self._lm, self._mimi = lm, mimi
        self._copy = step_mode == "fixed"
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._lm_state = lm.state(slots)
        self._mimi_state = mimi.state(slots)

    @torch.inference_mode()
    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        """Sets a fresh row's sampling, and speaks its voice and persona into it.

        Raises BadParams for a silent recording of a voice.
        """
        self._lm_state.set_sampling(row, self._sampling_of(params))
        made = yield from self._prompt_of(params)
        if made is not None:
            yield from self._lm.prefill(
                self._lm_state, row, made.prompt, prefixes=self._prefixes, key=made.key
            )

    @torch.inference_mode()
    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        """Takes one frame of each row. pcm: [len(rows), frame_size]; rows are distinct."""
        sound = torch.tensor(pcm, device=self._lm.device)
        if not self._copy:
            return self._launch(rows, sound)
        steps = [self._launch([row], sound[k : k + 1]) for k, row in enumerate(rows)]
        return StepResult(
            pcm=np.concatenate([step.pcm for step in steps]),
            heard=[heard for step in steps for heard in step.heard],
            text=[text for step in steps for text in step.text],
        )

    def _launch(self, batch: Sequence[int], pcm: Tensor) -> StepResult:
        rows = self._rows(batch)
        heard = [self._lm_state.seen[row] >= self._lm.config.max_delay for row in batch]
        made = self._lm.step(self._lm_state, rows, self._mimi.encode(self._mimi_state, rows, pcm))
        # A row that has no frame yet must not put one into its decoder.
        places = [place for place, has in enumerate(heard) if has]
        if len(places) == len(batch):
            sound = self._mimi.decode(self._mimi_state, rows, made.codes)
        else:
            sound = torch.zeros_like(pcm)
            if places:
                some = self._rows([batch[place] for place in places])
                sound[places] = self._mimi.decode(self._mimi_state, some, made.codes[places])
        text = self._say(batch, made.text.tolist())
        return StepResult(sound.clamp_(-1, 1).cpu().numpy(), heard, text)

    def reset(self, rows: Sequence[int]) -> None:
        """Makes the rows as new."""
        self._lm_state.reset(self._rows(rows))
        self._mimi_state.reset(rows)
        self._reset_text(rows)

    @torch.inference_mode()
    def age(self, row: int, frames: int) -> None:
        """Puts a fresh row where a session would be after `frames` frames, as for measuring."""
        self._lm_state.begin(self._rows([row]), frames, self._lm_state.grid.initial)

    def room(self) -> Room:
        """Rows share nothing."""
        return Room()

    def prefix_stats(self) -> PrefixStats:
        """The use of what is kept of prompts."""
        prefixes = self._prefixes
        return PrefixStats(prefixes.bytes, prefixes.hits, prefixes.misses)

    def _rows(self, rows: Sequence[int]) -> Rows:
        return Rows(rows, self._lm.device, copy=self._copy)
