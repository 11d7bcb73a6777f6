"""The language model's sessions on a GPU: their pages, prompts and launches, from the host."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.cuda.graphs import Graphs
from engine.cuda.launch import INTERPRETED
from engine.cuda.lm.model import CudaLM
from engine.cuda.lm.pages import NOWHERE, PAGE, PagePool, PageRings
from engine.cuda.lm.plan import SPLIT_PAGES, buckets, split_classes
from engine.lm.prompt import Prompt
from engine.model import PrefixStats


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a prompt leaves before its last call."""

    frames: int
    pages: tuple[int, ...]
    columns: Tensor
    """[2, channels] int64: the prompt's last two."""


class PagedLM:
    """A `CudaLM` with the host's knowledge of its slots.

    `step` is enqueued, not awaited. `prefill` awaits each of its pieces, so that what a prompt
    costs live sessions is bounded.
    """

    def __init__(
        self,
        lm: CudaLM,
        pages: int,
        *,
        prefix_cache_bytes: int = 0,
        chain: Callable[[int, int], None] | None = None,
    ) -> None:
        """pages: of the pool, enough for the rings of all slots.

        chain: what a step of (rows, splits) enqueues; None: `lm.launch`.
        """
        self.lm, self._state = lm, lm.state
        slots, places = lm.state.slots, lm.state.places
        if pages < slots * places:
            raise ValueError(f"{pages} pages are too few for {slots} rings of {places}")
        self.pool = PagePool(pages)
        self.rings = PageRings(self.pool, slots, lm.state.context)
        self.seen = np.zeros(slots, np.int64)
        """Calls of each slot so far."""
        self.splits = 1
        """Of the last step."""
        self._chain = chain or lm.launch
        self._graphs = Graphs()
        self._buckets = buckets(lm.max_rows)
        self._classes = split_classes(places)
        self._stale: set[int] = set()
        self._page_bytes = lm.state.page_bytes(lm.config, lm.state.kv.dtype)
        self._most_kept = min(prefix_cache_bytes // self._page_bytes, pages // 4)
        self._prefixes: OrderedDict[Hashable, _Prefix] = OrderedDict()
        self._kept = self._hits = self._misses = 0
        self._slot_host = self._pinned(lm.max_rows, lm.state.trash)
        table = lm.state.table
        self._table_host = self._pinned(table.numel(), pages).view(table.shape)
        self._table_host[lm.state.trash] = pages + 1

    @staticmethod
    def _pinned(size: int, value: int) -> Tensor:
        return torch.full((size,), value, dtype=torch.int32, pin_memory=not INTERPRETED)

    # Launches

    @torch.inference_mode()
    def capture(self) -> None:
        """Compiles and captures every chain of launches that may come, on the trash row."""
        for splits in reversed(self._classes):
            self._graphs.capture(("prompt", splits), partial(self.lm.launch_prompt, splits))
            self._graphs.capture(("call", splits), partial(self.lm.launch, 1, splits))
            for rows in reversed(self._buckets):
                self._graphs.capture((rows, splits), partial(self._step, rows, splits))

    def _step(self, rows: int, splits: int) -> None:
        self.lm.slot[:rows].copy_(self._slot_host[:rows], non_blocking=True)
        self._chain(rows, splits)

    def step(self, slots: Sequence[int]) -> int:
        """Enqueues a call of each of `slots`; returns the rows of the launch.

        The previous step must have ended.
        """
        bucket = self._buckets[bisect_left(self._buckets, len(slots))]
        chosen = np.asarray(slots)
        positions = self.seen[chosen]
        for row in np.flatnonzero(positions % PAGE == 0).tolist():
            self._make_room(slots[row], int(positions[row]))
        slot_host = self._slot_host.numpy()
        slot_host[: len(slots)] = chosen
        slot_host[len(slots) : bucket] = self._state.trash
        self._upload()
        self.splits = self._splits(int(positions.max()))
        self._graphs((bucket, self.splits))
        self.seen[chosen] += 1
        return bucket

    def _splits(self, position: int) -> int:
        """The class of splits for a launch whose last position is `position`."""
        pages = min(position // PAGE + 1, self._state.places)
        return self._classes[bisect_left(self._classes, -(-pages // SPLIT_PAGES))]

    def _make_room(self, slot: int, position: int, count: int = 1) -> None:
        """Makes `count` places from `position` on the slot's own, whatever was in them."""
        kv, most = self._state.kv, count // PAGE + 2
        self._forget_prefixes(lambda: self.pool.free >= most)
        for fresh in self.rings.prepare(slot, position, count):
            # What another session left in it must not be read, not even to be multiplied by 0.
            source = fresh.source
            kv[:, :, fresh.target] = 0 if source is None else kv[:, :, source]
        self._stale.add(slot)

    def _upload(self) -> None:
        """Tells the device of rings that have changed."""
        if not self._stale:
            return
        nobody = len(self.pool)
        for slot in self._stale:
            ring = self.rings.table[slot]
            self._table_host[slot] = torch.tensor(
                [nobody if page == NOWHERE else page for page in ring], dtype=torch.int32
            )
        self._stale.clear()
        self._state.table.copy_(self._table_host, non_blocking=True)

    def _wait(self) -> None:
        if not INTERPRETED:
            torch.cuda.current_stream().synchronize()

    # Sessions

    @property
    def free_pages(self) -> int:
        """Pages that a session could have, those of kept prompts included."""
        return self.pool.free + self._kept

    @torch.inference_mode()
    def reset(self, slots: Sequence[int]) -> None:
        """Makes slots as new."""
        self._state.reset(torch.tensor(slots, device=self.lm.device))
        for slot in slots:
            self.rings.release(slot)
            self.seen[slot] = 0
            self._stale.add(slot)

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, key: Hashable = None) -> Iterator[None]:
        """Puts a new slot behind a prompt, as `RQTransformer.prefill` does.

        Yields between pieces. Prompts of the same `key` share the pages of the first.
        """
        if not prompt.frames:
            return
        prefix = self._prefixes.get(key) if key is not None else None
        if prefix is None:
            self._misses += key is not None
            yield from self._replay(slot, prompt)
            columns, frames = prompt.columns[-2:], prompt.frames
            self._keep(key, slot, frames, columns)
        else:
            self._hits += 1
            self._prefixes.move_to_end(key)
            self.rings.adopt(slot, prefix.pages)
            columns, frames = prefix.columns, prefix.frames
        lm = self.lm
        self._state.begin(slot, frames - 1, columns[0], columns[1, : 1 + lm.config.books])
        self.seen[slot] = frames - 1
        self._make_room(slot, frames - 1)
        self._upload()
        lm.slot[0] = slot
        lm.user[0] = prompt.user.to(lm.user)
        self._graphs(("call", self._splits(frames - 1)))
        self.seen[slot] += 1
        self._wait()

    def _replay(self, slot: int, prompt: Prompt) -> Iterator[None]:
        """Appends all of a prompt's positions but the last to a slot's ring."""
        lm = self.lm
        inputs = self._embed(prompt)
        start, ring = 0, self._state.places * PAGE
        while start < len(inputs):
            # A chunk must not overwrite what its own first positions still see.
            count = min(lm.prefill_rows, len(inputs) - start)
            if start + count > ring:
                count = max(1, min(count, ring - start))
            self._make_room(slot, start, count)
            self._upload()
            lm.prompt_x[:count] = inputs[start : start + count]
            lm.prompt_x[count:] = 0
            lm.prompt_slot[:count] = slot
            lm.prompt_slot[count:] = self._state.trash
            lm.prompt_position.zero_()
            lm.prompt_position[:count] = torch.arange(start, start + count, device=lm.device)
            self._graphs(("prompt", self._splits(start + count - 1)))
            start += count
            self.seen[slot] = start
            self._wait()
            yield

    def _embed(self, prompt: Prompt) -> Tensor:
        """The inputs of all positions of a prompt but the last: [positions, width]."""
        lm, weights = self.lm, self.lm.weights
        columns = prompt.columns[:-2].to(lm.device) + weights.offsets
        inputs = torch.nn.functional.embedding(columns, weights.embedding).sum(1)
        if prompt.embeddings is None:
            return inputs
        given = prompt.embeddings.to(inputs)
        missing = inputs.shape[1] - given.shape[1]
        return torch.cat((torch.nn.functional.pad(given, (0, missing)), inputs))

    @torch.inference_mode()
    def age(self, slot: int, calls: int) -> None:
        """Puts a fresh slot before call `calls`, its ring filled with noise."""
        kv, kept = self._state.kv, min(calls, self._state.places * PAGE)
        self._make_room(slot, calls - kept, kept)
        self._upload()
        noise = torch.randn(kv[:, :, :1].shape, device=kv.device).to(kv.dtype)
        for page in self.rings.held(slot):
            kv[:, :, page : page + 1] = noise
        self._state.calls[slot] = calls
        self.seen[slot] = calls

    # Prompts that are kept

    def _keep(self, key: Hashable, slot: int, frames: int, columns: Tensor) -> None:
        """Keeps a prompt's pages, unless its ring has wrapped or there is no room for them."""
        pages = self.rings.held(slot)
        count = len(pages)
        if key is None or frames - 1 > self._state.places * PAGE or count > self._most_kept:
            return
        if key in self._prefixes:
            return  # Somebody with the same prompt was prepared meanwhile.
        self._forget_prefixes(lambda: self._kept + count <= self._most_kept)
        for page in pages:
            self.pool.share(page)
        self._prefixes[key] = _Prefix(frames, tuple(pages), columns)
        self._kept += count

    def _forget_prefixes(self, enough: Callable[[], bool]) -> None:
        """Forgets the prompts unused for longest, until it is enough or none is left."""
        while self._prefixes and not enough():
            _, prefix = self._prefixes.popitem(last=False)
            for page in prefix.pages:
                self.pool.release(page)
            self._kept -= len(prefix.pages)

    def prefix_stats(self) -> PrefixStats:
        """What is kept of prompts."""
        return PrefixStats(self._kept * self._page_bytes, self._hits, self._misses)
