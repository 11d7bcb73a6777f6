"""The lockstep model of `engine.rq`, on a GPU: each step one CUDA graph, copies and codec included.

A step's graph is chosen by its number of rows and by how far back the oldest of them reaches. It
copies the frames in from pinned memory, encodes, runs the language model, decodes and copies the
sound and text out; the host only names the slots and waits for the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from engine.api import EngineError, OpenParams, Pcm
from engine.cuda.graphs import Graphs
from engine.cuda.launch import INTERPRETED
from engine.cuda.lm.model import CudaLM
from engine.cuda.lm.paged import PagedLM
from engine.cuda.lm.pages import PAGE
from engine.cuda.lm.state import SlotState
from engine.cuda.lm.weights import CudaWeights
from engine.cuda.mimi.codec import CudaMimi
from engine.cuda.options import CudaOptions
from engine.lm.config import LMConfig
from engine.memory import check_slots, free_bytes, slots_that_fit
from engine.mimi.codec import Mimi
from engine.model import PrefixStats, Room, StepResult
from engine.prompter import Prompter
from engine.rq_base import RQBase
from engine.sampling import Sampling
from engine.text import Tokenizer

_DEFAULTS: Final = CudaOptions()
_SPARE_BYTES: Final = 3 << 30
"""Of the device's memory, left for graphs, scratch and the library's workspaces."""


class CudaModel(RQBase):
    """Moshi, PersonaPlex and their kind as a `LockstepModel` on a GPU."""

    def __init__(
        self,
        name: str,
        config: LMConfig,
        weights: CudaWeights,
        mimi: Mimi,
        tokenizer: Tokenizer,
        prompter: Prompter | None,
        *,
        sampling: Sampling,
        slots: int | None,
        options: CudaOptions = _DEFAULTS,
        about: str = "",
        examples: tuple[str, ...] = (),
        prefix_cache_bytes: int = 0,
        seed: int | None = None,
    ) -> None:
        """weights: of `pack`, in FP8 if the options say so. prompter: None for a model that takes
        no prompts. sampling: for sessions that name none. slots: None for as many as fit.

        Raises EngineError, which says how many slots fit, if there isn't the memory for `slots`.
        """
        context = min(options.context or config.context, config.context)
        places = -(-context // PAGE)
        dtype = weights.embedding.dtype
        kv = torch.float8_e4m3fn if options.kv == "fp8" else dtype
        device = weights.embedding.device
        page_bytes = SlotState.page_bytes(config, kv)
        by_memory = slots is None
        if slots is None:
            slots = slots_that_fit(
                places * page_bytes + mimi.state(1).nbytes,
                device,
                reserve=_SPARE_BYTES + prefix_cache_bytes,
            )
        # Before the codec takes memory for so many; `_pages` knows what it has left.
        check_slots(slots, places * page_bytes, device)
        self._mimi = CudaMimi(
            mimi,
            slots + 1,
            slots,
            dtype=torch.float16 if dtype.itemsize == 2 else dtype,
            fixed=options.fixed,
        )
        pages = self._pages(slots, places, page_bytes, prefix_cache_bytes, device)
        self.lm = CudaLM(
            config,
            weights,
            slots=slots,
            max_rows=slots,
            pages=pages,
            places=places,
            context=context,
            kv=kv,
            fixed=options.fixed,
        )
        self.lm.user = self._mimi.codes
        self.paged = PagedLM(
            self.lm, pages, prefix_cache_bytes=prefix_cache_bytes, chain=self._chain
        )
        pinned = not INTERPRETED
        self._pcm = torch.zeros(slots, mimi.frame_size, pin_memory=pinned)
        self._sound = torch.zeros(slots, mimi.frame_size, pin_memory=pinned)
        self._tokens = torch.zeros(slots, dtype=torch.int32, pin_memory=pinned)
        begun = time.monotonic()
        self.paged.capture()
        self.capture_s = time.monotonic() - begun
        """Seconds that compiling and capturing took."""
        super().__init__(
            name,
            config,
            mimi,
            tokenizer,
            prompter,
            sampling=sampling,
            seed=seed,
            slots=slots,
            slots_by_memory=by_memory,
            context=context,
            about=about,
            examples=examples,
            device=str(device),
            weight_bytes=weights.nbytes + mimi.nbytes,
            slot_bytes=places * page_bytes + self._mimi.nbytes_per_slot,
        )

    @staticmethod
    def _pages(
        slots: int, places: int, page_bytes: int, prefix_cache_bytes: int, device: torch.device
    ) -> int:
        """Pages of the pool: full rings for all slots, and prompts beside them."""
        need = slots * places * page_bytes
        room = free_bytes(device) - (_SPARE_BYTES if device.type == "cuda" else 0)
        if need > room:
            raise EngineError(
                f"{slots} slots need {need / 1e9:.1f} GB on {device}, but {room / 1e9:.1f} GB is "
                f"free: at most {max(0, room // (places * page_bytes))} fit"
            )
        return slots * places + min(prefix_cache_bytes, room - need) // page_bytes

    @property
    def free_pages(self) -> int:
        """Pages of the pool that sessions could still have."""
        return self.paged.free_pages

    @torch.inference_mode()
    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        """Sets a fresh row's sampling, and speaks its voice and persona into it.

        Raises BadParams for a silent recording of a voice.
        """
        self.lm.state.set_sampling(row, self._sampling_of(params))
        made = yield from self._prompt_of(params)
        if made is not None:
            yield from self.paged.prefill(row, made.prompt, made.key)

    def _chain(self, rows: int, splits: int) -> None:
        """What a step of `rows` rows enqueues."""
        self._mimi.pcm[:rows].copy_(self._pcm[:rows], non_blocking=True)
        self._mimi.encode(rows, self.lm.slot)
        self.lm.launch(rows, splits)
        self._mimi.decode(rows, self.lm.heard_slot, self.lm.codes)
        self._sound[:rows].copy_(self._mimi.sound[:rows], non_blocking=True)
        self._tokens[:rows].copy_(self.lm.text[:rows], non_blocking=True)

    @torch.inference_mode()
    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        """Takes one frame of each row. pcm: [len(rows), frame_size]; rows are distinct."""
        count = len(rows)
        self._pcm.numpy()[:count] = pcm
        self.paged.step(rows)
        self._wait()
        tokens = self._tokens[:count].tolist()
        sound: Pcm = np.array(self._sound.numpy()[:count])
        return StepResult(sound, [token >= 0 for token in tokens], self._say(rows, tokens))

    @staticmethod
    def _wait() -> None:
        if not INTERPRETED:
            torch.cuda.current_stream().synchronize()

    @torch.inference_mode()
    def reset(self, rows: Sequence[int]) -> None:
        """Makes the rows as new."""
        self.paged.reset(rows)
        # The codec counts the trash row's frames as well, and they must not go past an int32.
        self._mimi.reset(torch.tensor([*rows, self.lm.state.trash], device=self.lm.device))
        self._reset_text(rows)

    @torch.inference_mode()
    def age(self, row: int, frames: int) -> None:
        """Puts a fresh row where it would be after `frames` frames of silence, for benchmarks."""
        self.paged.age(row, frames)

    def time_parts(self, rows: int, repeats: int = 20) -> dict[str, float]:
        """Milliseconds of the parts of the last step, which had `rows` rows, each a graph alone.

        For benchmarks: the sessions' state is worthless afterwards.
        """
        lm, splits = self.lm, self.paged.splits
        chains = {
            "encode": lambda: self._mimi.encode(rows, lm.slot),
            "temporal": lambda: lm.launch_temporal(rows, splits),
            "depth": lambda: lm.launch_depformer(rows),
            "decode": lambda: self._mimi.decode(rows, lm.heard_slot, lm.codes),
        }
        graphs = Graphs()
        times: dict[str, float] = {}
        with torch.inference_mode():
            for name, chain in chains.items():
                graphs.capture(name, chain)
                marks: list[Any] = [
                    torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                    for _ in range(repeats + 1)
                ]
                marks[0].record()
                for mark in marks[1:]:
                    graphs(name)
                    mark.record()
                marks[-1].synchronize()
                taken = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
                times[name] = taken[repeats // 2]
        return times

    def room(self) -> Room:
        """Of the pool of pages, which every session's whole ring fits."""
        return Room(
            enough=self.free_pages >= self.lm.state.places,
            pages=len(self.paged.pool),
            free_pages=self.free_pages,
        )

    def prefix_stats(self) -> PrefixStats:
        """The use of what is kept of prompts."""
        return self.paged.prefix_stats()
