"""The one seam between sessions and models.

A session opens a lease on a slot, feeds it frames and receives one output for every frame fed.
Everything that crosses the seam is plain data, so that an engine may live in this process, in a
child process or elsewhere, and nothing above it can tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.stages.config import PipelineConfig
from engine.stages.values import ChatRequest, Made, RequestOutput, StageStats

Pcm = npt.NDArray[np.float32]
"""Mono samples in [-1, 1]."""


class EngineError(Exception):
    """Anything that goes wrong at the seam."""


class NoFreeSlot(EngineError):
    """Every slot is leased, or one session more would be one too many. It may be tried again."""


class Overloaded(NoFreeSlot):
    """There are free slots, but not the time or the memory for one more session."""


class BadParams(EngineError):
    """A session parameter that this model can't take. `field` is its name in `OpenParams`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TooManyRequests(EngineError):
    """As many requests as may be are under way."""


class NotServed(EngineError):
    """Requests of this mode aren't answered here: the message says what to do about it."""


class EngineUnavailable(EngineError):
    """The engine isn't running now: not started, restarting or stopped."""


class EngineLost(EngineError):
    """An engine died. `leases` are the ids of those that it had given: they are over."""

    def __init__(self, message: str, leases: Collection[int] = ()) -> None:
        super().__init__(message)
        self.leases = frozenset(leases)


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine serves. `slots` is the only source of capacity in the whole house, and how
    many sessions it takes now.
    """

    model: str
    sample_rate: int
    frame_size: int
    """Samples in one frame."""
    slots: int
    startup_frames: int
    """The output of this many first frames has no audio: the model's own delay."""
    max_in_flight: int
    """Frames of one lease that may be fed ahead of their outputs."""
    voices: tuple[str, ...] = ()
    default_voice: str | None = None
    persona: bool = False
    """Takes a text prompt."""
    voice_audio: bool = False
    """Takes a voice as a recording."""
    text: bool = False
    """Gives text with its audio."""
    sampling: bool = False
    """Takes seed, temperatures and top-k."""
    video: bool = False
    """Takes images with a frame."""
    about: str = ""
    """What the model can do, in a sentence or two for the person who will talk to it."""
    examples: tuple[str, ...] = ()
    """Sentences to say to it."""
    device: str = "cpu"
    step_mode: str = "ready"
    """"ready", or "fixed": bit-identical output for a session whoever shares the batch."""
    weight_bytes: int = 0
    slot_bytes: int = 0
    """Memory of one slot's state."""
    capacity: str = ""
    """Why there are so many slots, if they were worked out and not said."""
    most_slots: int = 0
    """`slots` may change while it serves, for what steps take, but is never above this. 0: it
    doesn't change.
    """

    @property
    def all_slots(self) -> int:
        """As many as there are when most are taken."""
        return max(self.slots, self.most_slots)

    @property
    def frame_s(self) -> float:
        """Seconds of one frame."""
        return self.frame_size / self.sample_rate


class OpenParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a session asks of its slot. None means the model's own default."""

    voice: str | None = None
    """A name from `EngineSpec.voices`."""
    persona: str | None = None
    """The text prompt, without wrapping."""
    voice_audio: bytes | None = None
    """A voice as float32 little-endian mono samples at the engine's rate."""
    seed: int | None = None
    """None draws one."""
    text_temperature: float | None = None
    """0 is greedy."""
    text_top_k: int | None = None
    audio_temperature: float | None = None
    """0 is greedy."""
    audio_top_k: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """A slot, held by one session until it is closed. An id is never used again."""

    id: int
    slot: int


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame of a caller, on its way down."""

    lease: int
    epoch: int
    index: int
    """Counts the lease's frames from 0."""
    pcm: Pcm
    """[frame_size]"""
    video: tuple[bytes, ...] = ()
    """Encoded images bound to this frame."""


class Timings(msgspec.Struct, frozen=True, gc=False):
    """How a step went. The same value is shared by all outputs of the step."""

    step_s: float
    rows: int


class StepOutput(msgspec.Struct, frozen=True, gc=False):
    """What a frame gave, on its way up. Every frame that was fed gives exactly one."""

    lease: int
    epoch: int
    index: int
    pcm: Pcm | None
    """[frame_size], or None while the model starts up."""
    text: str
    """The piece of text that belongs to this frame, or nothing."""
    wait_s: float
    """From arrival in the engine to the start of the step."""
    timings: Timings
    error: str = ""
    """Why the engine ended the lease with this frame; then it is the lease's last output."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters, read from the slots and queues themselves."""

    slots: int
    """As many sessions are taken now; fewer than there are, if steps have become that slow."""
    free: int
    prefill: int
    live: int
    draining: int
    queued_frames: int
    """Frames that wait for a step."""
    steps: int
    frames: int
    stale_frames: int
    """Frames of leases that had ended."""
    restarts: int
    device: str = ""
    """Where it runs; of several engines together, nowhere."""
    up: bool = True
    """False: it is dead, or doesn't answer, and all but `restarts` is unknown."""
    step_seconds: float = 0.0
    """Spent in steps."""
    utilisation: float = 0.0
    """The part of the last time that was spent in steps."""
    latency_s: float | None = None
    """Of frames at most, with one session more than there are, as predicted from measured steps;
    infinite if the engine would fall behind. None: not measured.
    """
    pages: int = 0
    """Of memory that slots share; 0 if each has its own."""
    free_pages: int = 0
    engines: tuple[EngineStats, ...] = ()
    """Those that these are the sum of."""
    prefix_cache_bytes: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_misses: int = 0
    stages: tuple[StageStats, ...] = ()


class Request(Protocol):
    """A request that was admitted: an iterator over its outputs for one reader.

    The last output is `Finished`; a request that can't be finished raises EngineError once. Its
    queue is bounded: while nobody reads, its work rests, and no other's does.
    """

    @property
    def made(self) -> Made:
        """All that has been made so far, read or not."""
        ...

    def abort(self) -> Made:
        """Gives the request up, wherever it is; idempotent. The iterator ends.

        Returns what was made so far.
        """
        ...

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    async def __anext__(self) -> RequestOutput: ...


class Engine(Protocol):
    """An engine as sessions see it. All methods belong to one event loop."""

    @property
    def spec(self) -> EngineSpec:
        """What is served. Raises EngineUnavailable before the first start."""
        ...

    @property
    def ready(self) -> bool:
        """True while sessions can be opened."""
        ...

    async def start(self) -> None:
        """Loads the model. Raises EngineError with the model's own words if it can't."""
        ...

    async def stop(self) -> None:
        """Ends the engine; idempotent, bounded in time. `steps` ends."""
        ...

    async def open(self, params: OpenParams) -> Lease:
        """Takes a slot and prefills it; returns when it is live.

        Raises NoFreeSlot, BadParams, EngineUnavailable or EngineLost. A cancelled open leaves
        nothing behind.
        """
        ...

    def feed(self, frames: Sequence[Frame]) -> None:
        """Hands over frames, at most `spec.max_in_flight` of one lease ahead of its outputs.

        Never blocks. Frames of a lease that has ended are counted and dropped.
        """
        ...

    def steps(self) -> AsyncIterator[list[StepOutput]]:
        """Yields the outputs of each step, in order. Has one consumer.

        Raises EngineLost once when an engine dies; a new call goes on with the others and its
        successor. Ends at `stop`.
        """
        ...

    async def close(self, lease: Lease) -> None:
        """Gives the slot back. Idempotent; frames that wait are dropped."""
        ...

    def submit(self, request: ChatRequest) -> Request:
        """Admits a request to the stages, which work on it between the steps.

        Raises NotServed, TooManyRequests or EngineUnavailable.
        """
        ...

    async def stats(self) -> EngineStats:
        """Gauges and counters of the running engine."""
        ...


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to build an engine: all that a child process needs to know."""

    model: str
    """"echo", "echo-video", "tiny", a packaged model's name, a directory or a Hugging Face
    repository id.
    """
    slots: int | Literal["auto"] | None = None
    """"auto": as many as memory and the time of a step allow. None: as many as the model says; if
    it doesn't, on CUDA "auto".
    """
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:INDEX"."""
    devices: tuple[str, ...] = ()
    """Several engines, one on each; see `engine.fleet`. None: one, on `device`."""
    admission: Literal["slots", "measured"] = "slots"
    """What a session needs: a free slot, or also the time for its steps, as measured. That is for
    sessions that send frames as they speak them.
    """
    context: int | None = None
    """CUDA only: frames that a session remembers. None: as many as the model was made for."""
    kv: Literal["bf16", "fp8"] | None = None
    """CUDA only: the type of keys and values. None: bf16."""
    weights: Literal["bf16", "fp8"] | None = None
    """CUDA only: the type of the temporal transformer's weights. None: bf16."""
    step_mode: str = "ready"
    threads: int | None = None
    """CPU threads of torch. None leaves torch's choice."""
    max_in_flight: int = 25
    prefix_cache_bytes: int = 1 << 30
    voices_dir: str | None = None
    """A directory of more voices."""
    delay_frames: int = 0
    """The echoes only: imitates a model's start-up delay."""
    seed: int | None = None
    """Base of the seeds drawn for sessions that name none."""
    chat: PipelineConfig | None = None
    """Stages that answer chat requests beside the conversations."""
