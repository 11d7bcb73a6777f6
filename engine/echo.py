"""Models that say what they hear: for tests, load and latency, without weights or torch."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from engine.api import BadParams, OpenParams, Pcm
from engine.model import ModelSpec, PrefixStats, Room, StepResult

SAMPLE_RATE = 24_000
FRAME_SIZE = 1_920


class EchoModel:
    """Gives a frame back in the step that took it, or `delay_frames` steps later.

    The delay imitates a model's start-up: the first `delay_frames` outputs of a row have no audio.
    """

    def __init__(self, slots: int, delay_frames: int = 0, *, slots_by_memory: bool = False) -> None:
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
            slots_by_memory=slots_by_memory,
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

    def age(self, row: int, frames: int) -> None:
        """Its steps don't depend on what was before."""

    def room(self) -> Room:
        """Rows share nothing."""
        return Room()

    def prefix_stats(self) -> PrefixStats:
        """There is no prefix cache."""
        return PrefixStats()


class EchoVideoModel(EchoModel):
    """Echo with eyes: it also says, in text, the colour of what it is shown, whenever that has
    changed.
    """

    def __init__(self, slots: int, delay_frames: int = 0, *, slots_by_memory: bool = False) -> None:
        super().__init__(slots, delay_frames, slots_by_memory=slots_by_memory)
        self._seen = [""] * slots
        self._said = [""] * slots

    @property
    def spec(self) -> ModelSpec:
        """Echo's, with video and text."""
        return replace(
            super().spec,
            name="echo-video",
            video=True,
            text=True,
            about="Says back everything you say, and names the colour of what your camera sees. "
            "No model at all: it shows what the line between you and the server does.",
            examples=("Hello, can you see me?", "What colour is this?"),
        )

    def see(self, row: int, images: Sequence[bytes]) -> None:
        """Looks at the last one. Raises ValueError for what can't be decoded."""
        self._seen[row] = colour(images[-1])

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        """Takes and gives [len(rows), frame_size]."""
        return replace(super().step(rows, pcm), text=[self._news(row) for row in rows])

    def reset(self, rows: Sequence[int]) -> None:
        """Forgets what the rows hold, have seen and have said."""
        super().reset(rows)
        for row in rows:
            self._seen[row] = self._said[row] = ""

    def _news(self, row: int) -> str:
        if self._said[row] == self._seen[row]:
            return ""
        self._said[row] = self._seen[row]
        return f" I see {self._seen[row]}."


def colour(image: bytes) -> str:
    """The colour of a JPEG or PNG file as a whole, in a word. Raises ValueError for other bytes."""
    import av  # only who is shown something needs it

    try:
        with av.open(io.BytesIO(image), "r") as file:
            frame = next(file.decode(video=0))
    except (av.FFmpegError, StopIteration) as error:
        raise ValueError(f"neither JPEG nor PNG: {error}") from error
    pixels = frame.reformat(width=8, height=8, format="rgb24").to_ndarray()
    red, green, blue = pixels.reshape(-1, 3).mean(axis=0) / 255
    hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.8 else "grey"
    return ("red", "yellow", "green", "cyan", "blue", "magenta")[round(6 * hue) % 6]
