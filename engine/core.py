"""The engine proper: admission, prefill and the stepping of ready rows, for one thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec
import numpy as np
from msgspec.structs import replace

from engine.admission import Admission, StepLog
from engine.api import (
    EngineError,
    EngineSpec,
    EngineStats,
    Frame,
    Lease,
    OpenParams,
    Overloaded,
    Pcm,
    StepOutput,
    Timings,
)
from engine.messages import in_words
from engine.model import LockstepModel, SeeingModel
from engine.recalibration import Recalibration
from engine.slots import SlotState, SlotTable
from engine.stages.messages import JobEvent
from engine.stages.scheduler import StageScheduler


class PrefillFailed(msgspec.Struct, frozen=True):
    """A model's prefill raised: that open has failed, and nothing else."""

    lease: int
    error: Exception


class _Session:
    """A live lease and its frames that wait for a step."""

    __slots__ = ("frames", "lease", "slot", "stepped")

    def __init__(self, lease: int, slot: int) -> None:
        self.lease = lease
        self.slot = slot
        self.frames: deque[tuple[Frame, float]] = deque()
        self.stepped = 0
        """So many frames."""


class EngineCore:
    """A lockstep model with its slots, synchronous and single-threaded.

    The owner calls, for ever: `open`, `close` and `feed` with what has come in; `step`, which
    takes one frame of every row that has one; `advance`, which does one bounded piece of anything
    else. So a ready row waits for one such piece at most. While `busy` is False there is nothing
    to call for.

    An exception of the model's `step` or `reset` leaves rows in an unknown state: the engine has
    failed, and the owner must drop it.
    """

    def __init__(
        self,
        model: LockstepModel,
        slots: int | None = None,
        *,
        max_in_flight: int = 25,
        step_mode: str = "ready",
        stages: StageScheduler | None = None,
        admission: Admission | None = None,
        capacity: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slots` None leases all rows of the model. `admission` says how many sessions are
        taken; None: one for each, and `capacity` says why there are so many. `clock` gives
        monotonic seconds.
        """
        known = model.spec
        slots = known.slots if slots is None else slots
        if not 1 <= slots <= (known.slots or slots):
            raise ValueError(f"slots must be 1 to the model's {known.slots} rows, not {slots}")
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
        self._spec = EngineSpec(
            model=known.name,
            sample_rate=known.sample_rate,
            frame_size=known.frame_size,
            slots=slots if admission is None else admission.plan.slots,
            startup_frames=known.startup_frames,
            max_in_flight=max_in_flight,
            voices=known.voices,
            default_voice=known.default_voice,
            persona=known.persona,
            voice_audio=known.voice_audio,
            text=known.text,
            sampling=known.sampling,
            video=known.video,
            about=known.about,
            examples=known.examples,
            device=known.device,
            step_mode=step_mode,
            weight_bytes=known.weight_bytes,
            slot_bytes=known.slot_bytes,
            capacity=capacity if admission is None else admission.plan.reason,
            most_slots=slots,
        )
        self.stages = stages or StageScheduler({})
        """The work that fills the time between steps."""
        self._model = model
        self._clock = clock
        self._admission = admission
        self._recalibration = Recalibration(model, admission, clock) if admission else None
        self._log = StepLog(clock)
        self._worked_until = clock()
        self._table = SlotTable(slots)
        self._sessions: dict[int, _Session] = {}
        self._ready: dict[int, _Session] = {}
        self._prefills: deque[tuple[Lease, Iterator[None]]] = deque()
        self._ended: list[int] = []
        self._failures: list[StepOutput] = []
        self._steps = 0
        self._frames = 0
        self._stale = 0

    @property
    def spec(self) -> EngineSpec:
        """What it serves, with as many slots as the admission takes now: another object after each
        change of their number.
        """
        if self._admission is not None and (plan := self._admission.plan).slots != self._spec.slots:
            self._spec = replace(self._spec, slots=plan.slots, capacity=plan.reason)
        return self._spec

    @property
    def ready(self) -> bool:
        """True while frames wait for a step."""
        return bool(self._ready)

    @property
    def busy(self) -> bool:
        """True while there is something to do, the stages' work included."""
        return self.idle_s == 0

    @property
    def idle_s(self) -> float | None:
        """How long there will be nothing to do if nothing comes in; None: for ever."""
        rows = self._ready or self._failures or self._ended or self._prefills
        if rows or self.stages.busy:
            return 0.0
        recalibration = self._recalibration
        return None if recalibration is None or self._in_use else recalibration.wait_s

    def open(self, lease: int, params: OpenParams) -> Lease:
        """Leases a slot under the owner's id, which must be above all earlier ones.

        The slot's prefill begins; `advance` tells when it is live. Raises NoFreeSlot, Overloaded
        or BadParams.
        """
        self._model.check(params)
        if not (self._table.count(SlotState.FREE) and self._model.room().enough):
            self._recycle()
        if self._recalibration is not None:
            self._recalibration.interrupt()
        if self._table.count(SlotState.FREE):
            self._check_load()
        opened = Lease(id=lease, slot=self._table.take(lease))
        self._prefills.append((opened, self._prefill(opened.slot, params)))
        return opened

    def close(self, lease: int) -> None:
        """Ends a lease, live or prefilling; its waiting frames are dropped. Idempotent."""
        if not self._table.holds(lease):
            return
        self._ended.append(self._table.end(lease))
        self._ready.pop(lease, None)
        if self._sessions.pop(lease, None) is None:
            self._prefills = deque(item for item in self._prefills if item[0].id != lease)

    def feed(self, frames: Sequence[Frame], arrived: float | None = None) -> None:
        """Queues frames for the next steps. `arrived`: on the engine's clock; None is now.

        Frames of a lease that isn't live are counted and dropped. A frame beyond `max_in_flight`
        waiting ones ends its lease: the next `step` says so in that lease's last output.
        """
        now = self._clock() if arrived is None else arrived
        limit = self.spec.max_in_flight
        for frame in frames:
            session = self._sessions.get(frame.lease)
            if session is None:
                self._stale += 1
                continue
            if len(session.frames) == limit:
                self._fail(frame, f"more than {limit} frames in flight")
                continue
            session.frames.append((frame, now))
            self._ready[frame.lease] = session

    def step(self) -> list[StepOutput]:
        """Steps the oldest frame of every row that has one; nothing if none has.

        Returns an output for each, and then one for each lease that failed since the last step.
        """
        self._show_images()
        failures, self._failures = self._failures, []
        if not self._ready:
            return failures
        batch = sorted(self._ready.values(), key=lambda session: session.slot)
        taken = [session.frames[0] for session in batch]
        pcm = np.concatenate([frame.pcm for frame, _ in taken]).reshape(len(batch), -1)
        start = self._clock()
        result = self._model.step([session.slot for session in batch], pcm)
        end = self._clock()
        timings = Timings(step_s=end - start, rows=len(batch))
        self._log.add(start, timings.step_s)
        if self._admission is not None:
            pause_s = start - self._worked_until
            self._admission.stepped(len(batch), timings.step_s, pause_s, self._age_of(batch))
        self._worked_until = end
        outputs: list[StepOutput] = []
        rows = zip(batch, taken, result.pcm, result.heard, result.text, strict=True)
        for session, (frame, arrived), sound, heard, text in rows:
            session.frames.popleft()
            session.stepped += 1
            if not session.frames:
                del self._ready[session.lease]
            outputs.append(
                StepOutput(
                    frame.lease,
                    frame.epoch,
                    frame.index,
                    sound if heard else None,
                    text,
                    start - arrived,
                    timings,
                )
            )
        self._steps += 1
        self._frames += len(batch)
        return outputs + failures

    def advance(self) -> Lease | PrefillFailed | JobEvent | None:
        """Makes ended rows as new, or does one piece of one prefill; prefills take turns. If
        there is neither, does one piece of the stages' work.

        Returns a lease that has just become live, or why one couldn't, or what a stage has made.
        """
        if self._ended:
            self._recycle()
            return None
        if not self._prefills:
            if self.stages.busy:
                return self.stages.advance()
            self._recalibrate()
            return None
        lease, pieces = self._prefills.popleft()
        try:
            next(pieces)
        except StopIteration:
            self._table.go_live(lease.id)
            self._sessions[lease.id] = _Session(lease.id, lease.slot)
            return lease
        except Exception as error:
            self._ended.append(self._table.end(lease.id))
            return PrefillFailed(lease.id, error)
        finally:
            self._worked_until = self._clock()
        self._prefills.append((lease, pieces))
        return None

    def stats(self) -> EngineStats:
        """Gauges and counters, counted now."""
        prefix, room, admission = self._model.prefix_stats(), self._model.room(), self._admission
        if admission is not None:
            admission.correct()
        slots, free = self.spec.slots, self._table.count(SlotState.FREE)
        return EngineStats(
            device=self.spec.device,
            step_seconds=self._log.seconds,
            utilisation=self._log.utilisation,
            latency_s=None if admission is None else admission.latency_s(self._leased + 1),
            pages=room.pages,
            free_pages=room.free_pages,
            slots=slots,
            free=max(0, min(free, slots - self._in_use)),
            prefill=self._table.count(SlotState.PREFILL),
            live=self._table.count(SlotState.LIVE),
            draining=self._table.count(SlotState.DRAINING),
            queued_frames=sum(len(session.frames) for session in self._ready.values()),
            steps=self._steps,
            frames=self._frames,
            stale_frames=self._stale,
            restarts=0,
            prefix_cache_bytes=prefix.bytes,
            prefix_cache_hits=prefix.hits,
            prefix_cache_misses=prefix.misses,
            stages=self.stages.stats(),
        )

    def _show_images(self) -> None:
        """Gives the model what it is to see in this step."""
        if not self.spec.video:
            return
        for session in tuple(self._ready.values()):
            frame, _ = session.frames[0]
            if not frame.video:
                continue
            try:
                cast(SeeingModel, self._model).see(session.slot, frame.video)
            except Exception as error:
                self._fail(frame, f"an image can't be seen: {in_words(error)}")

    @property
    def _in_use(self) -> int:
        """Rows that aren't as new."""
        return len(self._table) - self._table.count(SlotState.FREE)

    @property
    def _leased(self) -> int:
        return self._table.count(SlotState.PREFILL) + self._table.count(SlotState.LIVE)

    def _check_load(self) -> None:
        """Raises Overloaded if a session more would make the others late, or have no memory."""
        room = self._model.room()
        if not room.enough:
            raise Overloaded(f"{room.free_pages} of {room.pages} pages of memory are free")
        if self._admission is not None and (why := self._admission.refusal(self._leased)):
            raise Overloaded(why)

    def _recalibrate(self) -> None:
        """Does a piece of it, if it is due: never while anybody has a row, or waits to get one."""
        recalibration = self._recalibration
        if recalibration is not None and not self._in_use and not recalibration.wait_s:
            recalibration.advance()

    def _age_of(self, batch: Sequence[_Session]) -> float:
        """The part of what their rows can remember that they do, in the mean."""
        context = self._model.spec.context
        if not context:
            return 1.0
        return sum(min(context, session.stepped) for session in batch) / (context * len(batch))

    def _prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        # A generator of our own: the model's first piece, too, runs in `advance`.
        yield from self._model.prefill(row, params)

    def _recycle(self) -> None:
        if self._ended:
            self._model.reset(self._ended)
            for slot in self._ended:
                self._table.recycle(slot)
            self._ended = []
            if self._recalibration is not None:
                self._recalibration.rest()

    def _fail(self, frame: Frame, reason: str) -> None:
        self.close(frame.lease)
        self._failures.append(
            StepOutput(
                frame.lease, frame.epoch, frame.index, None, "", 0.0, Timings(0.0, 0), reason
            )
        )


def check_frames(frames: Sequence[Frame], spec: EngineSpec) -> None:
    """Raises EngineError, naming lease, frame and field, for a frame that the engine can't take."""
    shape = (spec.frame_size,)
    for frame in frames:
        pcm: Pcm = frame.pcm
        if pcm.shape != shape or pcm.dtype != np.float32:
            raise EngineError(
                f"lease {frame.lease}, frame {frame.index}: pcm is {pcm.dtype} "
                f"{list(pcm.shape)}, expected float32 {list(shape)}"
            )
        if frame.video and not spec.video:
            raise EngineError(
                f"lease {frame.lease}, frame {frame.index}: video given to a model without it"
            )
