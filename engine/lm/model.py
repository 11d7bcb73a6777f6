"""The RQ-transformer as sessions use it: a row each, one call a frame."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.lm.config import LMConfig
from engine.lm.depformer import Depformer
from engine.lm.prefix import Prefix, PrefixCache
from engine.lm.prompt import Prompt
from engine.lm.state import LMState
from engine.lm.temporal import Temporal
from engine.lm.weights import Weights, load_weights
from engine.rows import Rows

UNGENERATED = -2
"""A token of a frame that there isn't."""

PREFILL_CHUNK = 64
"""Positions of a prompt in one launch."""


class LMStep(NamedTuple):
    """The frames that one step completed, a row for each row that was stepped."""

    text: Tensor
    """[n] int64: the frame's text token."""
    codes: Tensor
    """[n, books] int64: the agent's codes."""
    heard: Tensor
    """[n] bool. False: no frame yet, its tokens are UNGENERATED."""


class RQTransformer:
    """A language model of text and codes that hears a frame and makes a frame in each call."""

    def __init__(
        self, config: LMConfig, weights: Weights, *, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.weights = weights
        self.device = torch.device(device)
        self._temporal = Temporal(config, weights, device)
        self._depformer = Depformer(config, weights, device)

    @classmethod
    def load(
        cls,
        path: Path,
        config: LMConfig,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> RQTransformer:
        """Reads a checkpoint. Raises CheckpointError that names what is wrong with it."""
        weights = load_weights(path, config, device=device, dtype=dtype)
        return cls(config, weights, device=device)

    def state(self, slots: int) -> LMState:
        """New rows for `slots` sessions."""
        dtype = self.weights.embedding.dtype
        return LMState(self.config, slots, device=self.device, dtype=dtype)

    @torch.inference_mode()
    def step(self, state: LMState, rows: Rows, user_codes: Tensor) -> LMStep:
        """One call of each of `rows`; other rows don't change.

        user_codes: [n, books] int64, each below `card`, or -1 for nothing. A row's first
        `max_delay` calls complete no frame.
        """
        if user_codes.shape != (len(rows), self.config.books):
            raise ValueError(
                f"user_codes must be {[len(rows), self.config.books]}, not {list(user_codes.shape)}"
            )
        return self._call(state, rows, user_codes, None)

    def _call(
        self, state: LMState, rows: Rows, user_codes: Tensor, forced: Tensor | None
    ) -> LMStep:
        """A step; `forced` [n, 1 + books] has tokens to use, below 0 where one is to be drawn."""
        grid, calls, max_delay = state.grid, rows.take(state.calls), self.config.max_delay
        seen = [state.seen[row] for row in rows.rows]
        places = grid.places(rows, calls)
        grid.write(places.user, user_codes)
        column = grid.read(places.column)
        if min(seen) <= max_delay:
            column = torch.where(calls[:, None] <= grid.delays, grid.initial, column)
        span = state.ring.span(rows, calls, 1, seen)
        h = self._temporal(state.ring, span, self._temporal.embed(column))
        draw = state.sampling.draw(rows, calls)
        text = draw.text(torch.mm(h, self.weights.text_head))
        if forced is not None:
            text = torch.where(forced[:, 0] < 0, text, forced[:, 0])
        codes = self._depformer(h, text, draw, None if forced is None else forced[:, 1:])
        grid.write(places.made, torch.cat((text[:, None], codes), dim=1))
        frame = grid.read(places.given)
        heard = calls >= max_delay
        if min(seen) < max_delay:
            frame = frame.masked_fill(~heard[:, None], UNGENERATED)
        rows.put(state.calls, calls + 1)
        for row in rows.rows:
            state.seen[row] += 1
        return LMStep(frame[:, 0], frame[:, 1:], heard)

    @torch.inference_mode()
    def prefill(
        self,
        state: LMState,
        row: int,
        prompt: Prompt,
        *,
        prefixes: PrefixCache | None = None,
        key: Hashable = None,
    ) -> Iterator[None]:
        """Puts a new row behind a prompt; its first real frame is then call `prompt.frames`.

        Yields between launches of at most PREFILL_CHUNK positions. What was computed once is used
        again by prompts of the same `key`, if there are `prefixes` to keep it in and a key. The
        last call of the prompt already draws tokens, with the row's own sampling parameters: set
        these first.
        """
        if not prompt.frames:
            return
        rows = Rows([row], self.device, copy=True)
        if key is None:
            prefixes = None
        prefix = prefixes.get(key) if prefixes is not None else None
        if prefix is None:
            yield from self._replay(state, rows, prompt)
            used = min(prompt.frames - 1, self.config.context)
            prefix = Prefix(prompt.frames, state.ring.save(row, used), prompt.columns[-2:])
            if prefixes is not None:
                prefixes.put(key, prefix)
        else:
            state.ring.load(row, prefix.kv)
        column, forced = prefix.columns.to(self.device)
        state.begin(rows, prefix.frames - 1, column)
        made = 1 + self.config.books
        self._call(state, rows, prompt.user.to(self.device)[None], forced[None, :made])

    def _replay(self, state: LMState, rows: Rows, prompt: Prompt) -> Iterator[None]:
        """Appends all of a prompt's positions but the last to the ring; makes nothing."""
        inputs = self._temporal.embed(prompt.columns[:-2].to(self.device))
        if prompt.embeddings is not None:
            inputs = torch.cat((prompt.embeddings.to(inputs), inputs))
        start = 0
        while start < len(inputs):
            # On a full ring, a chunk's first queries would miss the keys that its last overwrite.
            room = max(1, self.config.context - start)
            chunk = inputs[start : start + min(PREFILL_CHUNK, room)]
            offset = torch.tensor([start], device=self.device)
            span = state.ring.span(rows, offset, len(chunk), [start])
            self._temporal(state.ring, span, chunk)
            start += len(chunk)
            yield
