"""What a lockstep model is to the engine: slot rows that are prefilled, stepped and reset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from engine.api import OpenParams, Pcm


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do; see `engine.api.EngineSpec` for the fields' meanings."""

    name: str
    sample_rate: int
    frame_size: int
    startup_frames: int
    slots: int = 0
    """Rows the model was built with: what the engine leases. 0 leaves it to the engine's config."""
    slots_by_memory: bool = False
    """`slots` is what the memory has room for: the engine leases as many as it can step in time."""
    context: int = 0
    """Frames that a row remembers; its steps take no longer after so many. 0: steps don't depend
    on what was before.
    """
    voices: tuple[str, ...] = ()
    default_voice: str | None = None
    persona: bool = False
    voice_audio: bool = False
    text: bool = False
    sampling: bool = False
    video: bool = False
    about: str = ""
    examples: tuple[str, ...] = ()
    device: str = "cpu"
    weight_bytes: int = 0
    slot_bytes: int = 0


class StepResult(msgspec.Struct, frozen=True):
    """A step's output, a row for each row that was stepped, in the same order."""

    pcm: Pcm
    """[rows, frame_size], not touched by the model again."""
    heard: Sequence[bool]
    """False: the row has no audio yet."""
    text: Sequence[str]


class PrefixStats(msgspec.Struct, frozen=True):
    """The prefix cache's bytes in use, hits and misses."""

    bytes: int = 0
    hits: int = 0
    misses: int = 0


class Room(msgspec.Struct, frozen=True):
    """The memory that a model's rows share. Without any, each row has its own from the start."""

    enough: bool = True
    """For one more session."""
    pages: int = 0
    free_pages: int = 0


class LockstepModel(Protocol):
    """A model whose sessions are rows of one batch.

    Rows are independent: a row that isn't named in a call doesn't change in any way, and after
    `reset` it can't be told from a new one.
    """

    @property
    def spec(self) -> ModelSpec:
        """What the model can do."""
        ...

    def check(self, params: OpenParams) -> None:
        """Raises engine.api.BadParams for what the model can't take. Cheap: no model work."""
        ...

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        """Prepares a fresh row for a session.

        Yields between bounded pieces of work, so that live rows can be stepped in between; the
        row is live when the iterator ends. May be abandoned: `reset` follows.
        """
        ...

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        """Takes one frame of each named row. pcm: [len(rows), frame_size]; rows are distinct."""
        ...

    def reset(self, rows: Sequence[int]) -> None:
        """Makes the rows as new."""
        ...

    def age(self, row: int, frames: int) -> None:
        """Puts a fresh row, for measuring, where a session would be that has heard and said
        `frames` frames. What it then remembers is undefined; `reset` follows.
        """
        ...

    def room(self) -> Room:
        """What is left of the shared memory. Cheap: no model work."""
        ...

    def prefix_stats(self) -> PrefixStats:
        """The prefix cache's use."""
        ...


class SeeingModel(LockstepModel, Protocol):
    """A lockstep model that takes images with its frames: its spec says `video`."""

    def see(self, row: int, images: Sequence[bytes]) -> None:
        """Takes the images that belong to the row's next step, each a JPEG or PNG file.

        What it raises ends that row's session, with the error's words, and no other's: they come
        from outside, and may be anything.
        """
        ...
