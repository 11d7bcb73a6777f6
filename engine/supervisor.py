"""The owner of an engine: leases and answers on the event loop, and a new engine after a death."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.api import (
    EngineError,
    EngineLost,
    EngineSpec,
    EngineStats,
    EngineUnavailable,
    Frame,
    Lease,
    OpenParams,
    Request,
    StepOutput,
)
from engine.backoff import Backoff
from engine.core import check_frames
from engine.gate import Gate
from engine.messages import (
    Close,
    Event,
    GetStats,
    Live,
    Open,
    Order,
    Outputs,
    Refused,
    SlotsChanged,
    StatsTaken,
)
from engine.stages.config import PipelineConfig
from engine.stages.messages import JobCommand, JobEnded, JobFailed, Produced, StartJob
from engine.stages.service import StageService
from engine.stages.values import ChatRequest
from engine.stream import StepStream, read

logger = logging.getLogger(__name__)

_STEP_S_WEIGHT = 0.1
"""Of the newest step in the mean."""
_QUESTIONS = 6
"""In the time in which it must have answered."""


class Link(Protocol):
    """One running engine, seen from the event loop."""

    @property
    def spec(self) -> EngineSpec:
        """What it serves."""
        ...

    @property
    def lost(self) -> asyncio.Future[str]:
        """Done when the engine is gone, with the reason in words."""
        ...

    def send(self, command: Order) -> None:
        """Tells the engine; in vain if it is gone."""
        ...

    def feed(self, frames: Sequence[Frame], arrived: float) -> None:
        """Hands frames over; in vain if the engine is gone."""
        ...

    def abort(self, reason: str) -> None:
        """Gives the engine up: `lost` follows."""
        ...

    async def stop(self) -> None:
        """Ends the engine; idempotent, bounded in time."""
        ...


Launch = Callable[[Callable[[Event], None], Gate], Awaitable[Link]]
"""Starts an engine whose events go to the callback, on the loop, and which closes the gate while
frames are ready. Raises EngineError if it can't.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An engine's place among several that are used as one."""

    changed: asyncio.Event
    """Set when any of them has made a step."""
    name: str
    """In the log and in the metrics."""
    index: int
    count: int
    """A lease's id leaves the remainder `index` when divided by `count`."""
    gate: Gate | None = None
    """Closed by all of them."""


class SupervisedEngine:
    """Implements `engine.api.Engine` over any way to run an engine.

    Lease ids count on over all engines of this owner, so none is used twice.
    """

    def __init__(
        self,
        launch: Launch,
        backoff: Backoff,
        chat: PipelineConfig | None = None,
        place: Place | None = None,
        *,
        answer_s: float | None = None,
    ) -> None:
        """`chat`: the stages that answer requests. `place`: None if it is the only engine.
        `answer_s`: an engine that doesn't answer for so long is given up; None: it never is. Raises
        PipelineError.
        """
        place = place or Place(asyncio.Event(), "", 0, 1)
        self.name = place.name
        self.stream = StepStream(place.changed)
        """Its steps."""
        self.step_s = 0.0
        """Of late, in the mean."""
        self.restarts = 0
        self._changed = place.changed
        self.gate = Gate(place.gate.memory if place.gate else None, place.index)
        """Closed while frames are ready here, or at an engine beside."""
        self._stages = StageService(chat, self._tell, self.gate)
        self._launch = launch
        self._backoff = backoff
        self._answer_s = answer_s
        self._link: Link | None = None
        self._spec: EngineSpec | None = None
        self._slots_changed: SlotsChanged | None = None
        """The last word of this engine on it."""
        self._ids = itertools.count(place.index, place.count)
        self._leases: set[int] = set()
        self._opens: dict[int, asyncio.Future[Lease]] = {}
        self._questions: dict[int, asyncio.Future[EngineStats]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False
        self._alive_since = 0.0
        self._failures = 0
        self._stale = 0

    @property
    def spec(self) -> EngineSpec:
        """What is served. Raises EngineUnavailable before the first start."""
        if self._spec is None:
            raise EngineUnavailable("the engine hasn't started yet")
        return self._spec

    @property
    def ready(self) -> bool:
        """True while sessions can be opened."""
        return self._link is not None and not self._stopped

    @property
    def held(self) -> int:
        """Leases of this owner, and those that are being opened."""
        return len(self._leases) + len(self._opens)

    async def start(self) -> None:
        """Loads the model. Raises EngineError with the model's own words if it can't."""
        if self._starting is not None or self._stopped:
            raise EngineError("an engine is started once")
        self._starting = asyncio.create_task(self._begin())
        try:
            await self._starting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EngineUnavailable("the engine was stopped while it started") from None
        self._stages.start()

    async def stop(self) -> None:
        """Ends the engine; idempotent, bounded in time. `steps` ends."""
        self._stopped = True
        stopped = EngineUnavailable("the engine has stopped")
        self._stages.close(stopped)
        self._give_up(stopped)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._stages.stop()
        if self._link is not None:
            await self._link.stop()
        self.gate.close()
        self.stream.end()

    async def open(self, params: OpenParams) -> Lease:
        """Takes a slot and prefills it; returns when it is live.

        Raises NoFreeSlot, BadParams, EngineUnavailable or EngineLost. A cancelled open leaves
        nothing behind.
        """
        link = self._running()
        lease = next(self._ids)
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._opens[lease] = answer
        try:
            link.send(Open(lease, params))
            return await answer
        except asyncio.CancelledError:
            # Live or not, and perhaps just answered: the engine knows, and ends it once.
            self._leases.discard(lease)
            link.send(Close(lease))
            raise
        finally:
            self._opens.pop(lease, None)

    def feed(self, frames: Sequence[Frame]) -> None:
        """Hands over frames, at most `spec.max_in_flight` of one lease ahead of its outputs.

        Never blocks. Frames of a lease that has ended are counted and dropped. Raises EngineError
        for a frame of the wrong shape or type; then none of them is taken.
        """
        check_frames(frames, self.spec)
        known = [frame for frame in frames if frame.lease in self._leases]
        self._stale += len(frames) - len(known)
        if known and self._link is not None:
            self._link.feed(known, time.monotonic())

    def steps(self) -> AsyncIterator[list[StepOutput]]:
        """Yields the outputs of each step, in order. Has one consumer.

        Raises EngineLost once when the engine dies; a new call goes on with its successor. Ends
        at `stop`.
        """
        return read((self.stream,), self._changed)

    async def close(self, lease: Lease) -> None:
        """Gives the slot back. Idempotent; frames that wait are dropped."""
        if lease.id in self._leases:
            self._leases.discard(lease.id)
            if self._link is not None:
                self._link.send(Close(lease.id))

    def submit(self, request: ChatRequest) -> Request:
        """Admits a request to the stages, which work on it between the steps.

        Raises NotServed, TooManyRequests or EngineUnavailable.
        """
        return self._stages.submit(request)

    async def stats(self) -> EngineStats:
        """Gauges and counters of the running engine; stale frames and restarts of all."""
        link = self._running()
        request = next(self._ids)
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._questions[request] = answer
        try:
            link.send(GetStats(request))
            stats = await answer
        finally:
            self._questions.pop(request, None)
        return msgspec.structs.replace(
            stats,
            device=self.name or stats.device,
            stale_frames=stats.stale_frames + self._stale,
            restarts=self.restarts,
            stages=stats.stages + self._stages.stats,
        )

    @property
    def _title(self) -> str:
        return f"the engine on {self.name}" if self.name else "the engine"

    def _tell(self, command: JobCommand) -> None:
        if isinstance(command, StartJob):
            self._running().send(command)
        elif self._link is not None:
            self._link.send(command)

    def _running(self) -> Link:
        if self._stopped:
            raise EngineUnavailable(f"{self._title} has stopped")
        if self._link is None:
            words = "is starting again" if self._spec else "hasn't started yet"
            raise EngineUnavailable(f"{self._title} {words}")
        return self._link

    def _take(self, event: Event) -> None:
        match event:
            case Outputs(outputs=outputs):
                # Leases that the engine itself has ended come last in a step.
                for output in reversed(outputs):
                    if not output.error:
                        break
                    self._leases.discard(output.lease)
                if (timings := outputs[0].timings).rows:
                    self.step_s += _STEP_S_WEIGHT * (timings.step_s - self.step_s)
                self.stream.put(outputs)
                limit = 2 * self.spec.all_slots * self.spec.max_in_flight
                if self.stream.waiting > limit and self._link is not None:
                    self._link.abort(f"nobody reads its steps: over {limit} outputs wait")
            case Live(lease=lease):
                if (opened := self._opens.get(lease.id)) is not None and not opened.done():
                    self._leases.add(lease.id)
                    opened.set_result(lease)
            case Refused(lease=refused):
                if (opened := self._opens.get(refused)) is not None and not opened.done():
                    opened.set_exception(event.error())
            case SlotsChanged(slots=slots, capacity=capacity):
                self._slots_changed = event
                if self._spec is not None:
                    self._spec = msgspec.structs.replace(self._spec, slots=slots, capacity=capacity)
            case StatsTaken(request=request, stats=stats):
                if (asked := self._questions.get(request)) is not None and not asked.done():
                    asked.set_result(stats)
            case Produced() | JobEnded() | JobFailed():
                self._stages.take(event)

    async def _begin(self) -> None:
        link = await self._launch(self._take, self.gate)
        self._spec = link.spec
        self._link = link
        if self._slots_changed is not None:  # as soon as it had said what it serves
            self._take(self._slots_changed)
        self._alive_since = time.monotonic()
        link.lost.add_done_callback(self._mourn)
        if self._answer_s is not None:
            self._watching = asyncio.create_task(self._watch(link, self._answer_s))

    async def _watch(self, link: Link, answer_s: float) -> None:
        """Gives the engine up if it hangs."""
        try:
            while True:
                await asyncio.sleep(answer_s / _QUESTIONS)
                async with asyncio.timeout(answer_s):
                    await self.stats()
        except TimeoutError:
            link.abort(f"it hasn't answered for {answer_s:g} s")
        except EngineError:
            return  # it is lost already

    def _mourn(self, lost: asyncio.Future[str]) -> None:
        self._link = None
        if self._watching is not None:
            self._watching.cancel()
        self.gate.closed = False
        if self._stopped:
            return
        words = f"{self._title} is lost: {lost.result()}"
        logger.error("%s", words)
        error = EngineLost(words, self._leases)
        self._stages.lose_engine(error)
        self._give_up(EngineLost(words))
        self.stream.lose(error)
        if time.monotonic() - self._alive_since >= self._backoff.longest_s:
            self._failures = 0
        self._starting = asyncio.create_task(self._restart())

    def _give_up(self, error: EngineError) -> None:
        self._leases.clear()
        waiting: list[asyncio.Future[Any]] = [*self._opens.values(), *self._questions.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)

    async def _restart(self) -> None:
        while True:
            delay = self._backoff.delay_s(self._failures)
            self._failures += 1
            logger.info("%s starts again in %.2f s", self._title, delay)
            await asyncio.sleep(delay)
            self._slots_changed = None
            try:
                await self._begin()
            except EngineError as error:
                logger.error("%s can't start again: %s", self._title, error)
            else:
                self.restarts += 1
                return
