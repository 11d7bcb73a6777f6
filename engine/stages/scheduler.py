"""Whose turn it is: the jobs of the stages that run in the engine, for one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping

from engine.api import BadParams, EngineError
from engine.stages.messages import (
    WINDOW,
    AbortJob,
    Grant,
    JobCommand,
    JobEnded,
    JobEvent,
    JobFailed,
    Produced,
    StartJob,
)
from engine.stages.metrics import Stopwatch
from engine.stages.stage import Stage
from engine.stages.values import Piece, StageEnd, StageStats

logger = logging.getLogger(__name__)


class _Job:
    """A job, waiting or running."""

    __slots__ = ("credit", "id", "pieces", "stage", "watch")

    def __init__(
        self,
        job: int,
        stage: _Queue,
        pieces: Generator[Piece | None, None, StageEnd],
        watch: Stopwatch,
    ) -> None:
        self.id = job
        self.stage = stage
        self.pieces = pieces
        self.watch = watch
        self.credit = WINDOW


class _Queue:
    """A stage and its jobs."""

    __slots__ = ("max_running", "name", "running", "stage", "unread", "waiting")

    def __init__(self, name: str, stage: Stage, max_running: int) -> None:
        self.name = name
        self.stage = stage
        self.max_running = max_running
        self.waiting: deque[_Job] = deque()
        self.running: dict[int, _Job] = {}
        self.unread: dict[int, _Job] = {}


class StageScheduler:
    """The jobs of several stages, first come, first served; those that run take turns.

    A job whose reader doesn't take what it made leaves its place to others, and is the next to
    get one when its reader goes on: a slow reader holds up nobody else.
    """

    def __init__(
        self,
        stages: Mapping[str, tuple[Stage, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stages`: by name, each with the number of jobs that it works on at a time."""
        self._queues = {name: _Queue(name, *stage) for name, stage in stages.items()}
        self._clock = clock
        self._jobs: dict[int, _Job] = {}
        self._turns: deque[_Job] = deque()

    @property
    def busy(self) -> bool:
        """True while `advance` has something to do."""
        return bool(self._turns)

    def obey(self, command: JobCommand) -> None:
        """Does as the owner says. Jobs that are not here any more are no error."""
        match command:
            case StartJob(job=job, stage=name, given=given):
                queue = self._queues[name]
                watch = Stopwatch(self._clock())
                self._jobs[job] = _Job(job, queue, queue.stage.run(given), watch)
                queue.waiting.append(self._jobs[job])
                self._fill(queue)
            case AbortJob(job=job):
                if (aborted := self._jobs.get(job)) is not None:
                    self._remove(aborted)
                    self._close(aborted)
            case Grant(job=job, pieces=pieces):
                if (granted := self._jobs.get(job)) is not None:
                    granted.credit += pieces
                    queue = granted.stage
                    if queue.unread.pop(job, None) is not None:
                        queue.waiting.appendleft(granted)
                        self._fill(queue)

    def advance(self) -> JobEvent | None:
        """Does one piece of one job's work; says what came of it, if anything did."""
        if not self._turns:
            return None
        job = self._turns.popleft()
        try:
            piece = next(job.pieces)
        except StopIteration as stop:
            self._remove(job)
            return JobEnded(job.id, stop.value, job.watch.stop(job.stage.name, self._clock()))
        except Exception as error:
            self._remove(job)
            return self._failed(job, error)
        if piece is not None:
            job.watch.output(self._clock())
            job.credit -= 1
        if job.credit:
            self._turns.append(job)
        else:
            queue = job.stage
            queue.unread[job.id] = queue.running.pop(job.id)
            self._fill(queue)
        return None if piece is None else Produced(job.id, piece)

    def stats(self) -> tuple[StageStats, ...]:
        """Gauges, counted now."""
        return tuple(
            StageStats(
                stage=name,
                waiting=len(queue.waiting),
                running=len(queue.running),
                unread=len(queue.unread),
            )
            for name, queue in self._queues.items()
        )

    def _fill(self, queue: _Queue) -> None:
        while queue.waiting and len(queue.running) < queue.max_running:
            job = queue.waiting.popleft()
            job.watch.start(self._clock())
            queue.running[job.id] = job
            self._turns.append(job)

    def _remove(self, job: _Job) -> None:
        del self._jobs[job.id]
        queue = job.stage
        if queue.running.pop(job.id, None) is not None:
            if job in self._turns:
                self._turns.remove(job)
        elif queue.unread.pop(job.id, None) is None:
            queue.waiting.remove(job)
        self._fill(queue)

    def _close(self, job: _Job) -> None:
        try:
            job.pieces.close()
        except Exception:
            logger.exception("stage %s: job %d didn't end cleanly", job.stage.name, job.id)

    def _failed(self, job: _Job, error: Exception) -> JobFailed:
        if isinstance(error, BadParams):
            return JobFailed(job.id, str(error), error.field)
        if isinstance(error, EngineError):
            return JobFailed(job.id, str(error))
        logger.error("stage %s: job %d failed", job.stage.name, job.id, exc_info=error)
        return JobFailed(job.id, f"{type(error).__name__}: {error}")
