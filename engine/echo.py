"""A model that says what it hears: for tests, load and latency, without weights or torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.api import BadParams, OpenParams, Pcm
from engine.model import ModelSpec, PrefixStats, StepResult

SAMPLE_RATE = 24_000
FRAME_SIZE = 1_920


class EchoModel:
    """Gives a frame back in the step that took it, or `delay_frames` steps later.

    The delay imitates a model's start-up: the first `delay_frames` outputs of a row have no audio.
    """

    def __init__(self, slots: int, delay_frames: int = 0) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        if delay_frames < 0:
            raise ValueError(f"delay_frames must not be negative, not {delay_frames}")
        self._delay = delay_frames
        self._held = np.zeros((slots, delay_frames, FRAME_SIZE), np.float32)
        self._count = np.zeros(slots, np.int64)
        self._spec = ModelSpec(
            name="echo",
            sample_rate=SAMPLE_RATE,
            frame_size=FRAME_SIZE,
            startup_frames=delay_frames,
            about="Says back everything you say, as soon as it has heard it. No model at all: it "
            "shows what the line between you and the server does to a voice.",
            examples=("Hello, can you hear me?", "One, two, three, testing."),
            slots=slots,
            slot_bytes=(self._held.nbytes + self._count.nbytes) // slots,
        )

    @property
    def spec(self) -> ModelSpec:
        """What the model can do: sound in, sound out, and no parameter at all."""
        return self._spec

    def check(self, params: OpenParams) -> None:
        """Raises BadParams for any parameter that is set."""
        for field in params.__struct_fields__:
            if getattr(params, field) is not None:
                raise BadParams(field, f"the echo model takes no {field}")

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        """Nothing to prepare: the row is live at once."""
        return iter(())

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        """Takes and gives [len(rows), frame_size]."""
        text = ("",) * len(rows)
        if not self._delay:
            return StepResult(pcm=pcm, heard=(True,) * len(rows), text=text)
        index = np.asarray(rows, np.int64)
        place = self._count[index] % self._delay
        given = self._held[index, place]
        heard = self._count[index] >= self._delay
        self._held[index, place] = pcm
        self._count[index] += 1
        return StepResult(pcm=given, heard=heard.tolist(), text=text)

    def reset(self, rows: Sequence[int]) -> None:
        """Forgets what the rows hold."""
        self._held[list(rows)] = 0
        self._count[list(rows)] = 0

    def prefix_stats(self) -> PrefixStats:
        """There is no prefix cache."""
        return PrefixStats()
