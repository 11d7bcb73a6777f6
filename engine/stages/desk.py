"""Where requests are taken in: each goes through the graph of a pipeline, stage by stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from engine.api import BadParams, EngineError, EngineUnavailable, TooManyRequests
from engine.stages.config import PipelineConfig
from engine.stages.graph import check_pipeline
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
from engine.stages.stream import RequestStream
from engine.stages.values import (
    ChatRequest,
    Finished,
    Piece,
    StageInput,
    StageMetrics,
    TextPiece,
)

_GRANT: Final = WINDOW // 2


class _Job:
    """A stage's work on a request, under way."""

    __slots__ = ("id", "pieces", "run", "stage", "taken")

    def __init__(self, job: int, stage: str, run: _Run) -> None:
        self.id = job
        self.stage = stage
        self.run = run
        self.pieces: list[str] = []
        self.taken = 0


class _Run:
    """A request on its way through the graph."""

    __slots__ = ("jobs", "metrics", "request", "stream", "texts")

    def __init__(self, request: ChatRequest, stream: RequestStream) -> None:
        self.request = request
        self.stream = stream
        self.jobs: dict[str, _Job] = {}
        self.texts: dict[str, str] = {}
        """What the stages have made that are done."""
        self.metrics: list[StageMetrics] = []


class RequestDesk:
    """The requests of one pipeline, on the event loop. All that is admitted ends exactly once:
    it finishes, fails, is aborted, or the desk closes.
    """

    def __init__(self, pipeline: PipelineConfig, send: Callable[[str, JobCommand], None]) -> None:
        """`send` tells the home of a stage, by the stage's name. Raises PipelineError."""
        self._final = check_pipeline(pipeline)
        self._pipeline = pipeline
        self._send = send
        self._ids = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._jobs: dict[int, _Job] = {}
        self._closed = False

    @property
    def requests(self) -> int:
        """Those that are admitted and haven't ended."""
        return len(self._runs)

    @property
    def jobs(self) -> int:
        """Those that are under way."""
        return len(self._jobs)

    def submit(self, request: ChatRequest) -> RequestStream:
        """Admits a request. Raises TooManyRequests or EngineUnavailable."""
        if self._closed:
            raise EngineUnavailable("the engine has stopped")
        limit = self._pipeline.max_requests
        if len(self._runs) >= limit:
            raise TooManyRequests(f"{limit} requests are under way, and more are not taken in")
        number = next(self._ids)
        stream = RequestStream(
            number,
            grant=lambda pieces: self._grant(number, pieces),
            leave=lambda: self._end(number),
        )
        run = self._runs[number] = _Run(request, stream)
        try:
            self._start_ready(run)
        except EngineError:
            self._end(number)
            raise
        return stream

    def take(self, event: JobEvent) -> None:
        """Something has come of a job; of one that has ended it is dropped."""
        job = self._jobs.get(event.job)
        if job is None:
            return
        match event:
            case Produced(piece=piece):
                self._deliver(job, piece)
            case JobEnded(end=end, metrics=metrics):
                run = job.run
                self._forget(job)
                run.metrics.append(metrics)
                if job.stage == self._final:
                    self._end(run.stream.id, Finished(end=end, metrics=tuple(run.metrics)))
                    return
                run.texts[job.stage] = "".join(job.pieces)
                try:
                    self._start_ready(run)
                except EngineError as error:
                    self._end(run.stream.id, error)
            case JobFailed(message=message, field=field):
                run = job.run
                self._forget(job)
                failure = EngineError(message) if field is None else BadParams(field, message)
                self._end(run.stream.id, failure)

    def lose(self, stages: frozenset[str], error: EngineError) -> None:
        """The home of these stages is gone, and with it the requests that are there."""
        for number, run in list(self._runs.items()):
            if not stages.isdisjoint(run.jobs):
                self._end(number, error, lost=stages)

    def close(self, error: EngineError) -> None:
        """Ends every stream with the error; nothing is admitted any more. Idempotent."""
        self._closed = True
        for number in list(self._runs):
            self._end(number, error)

    def _start_ready(self, run: _Run) -> None:
        """Starts each stage whose inputs are all there and which hasn't begun."""
        for name, stage in self._pipeline.stages.items():
            if name in run.jobs or name in run.texts:
                continue
            if all(source in run.texts for source in stage.inputs):
                job = _Job(next(self._ids), name, run)
                texts = tuple(run.texts[source] for source in stage.inputs)
                self._send(name, StartJob(job.id, name, StageInput(run.request, texts)))
                self._jobs[job.id] = run.jobs[name] = job

    def _deliver(self, job: _Job, piece: Piece) -> None:
        if job.stage == self._final:
            job.run.stream.put(piece)
            return
        if isinstance(piece, TextPiece):
            job.pieces.append(piece.text)
        job.taken += 1
        if job.taken == _GRANT:
            job.taken = 0
            self._send(job.stage, Grant(job.id, _GRANT))

    def _grant(self, number: int, pieces: int) -> None:
        run = self._runs.get(number)
        if run is not None and (job := run.jobs.get(self._final)) is not None:
            self._send(self._final, Grant(job.id, pieces))

    def _forget(self, job: _Job) -> None:
        del self._jobs[job.id], job.run.jobs[job.stage]

    def _end(
        self,
        number: int,
        last: Finished | EngineError | None = None,
        *,
        lost: frozenset[str] = frozenset(),
    ) -> None:
        """Ends a request; its jobs are aborted, but for those of stages that are gone."""
        run = self._runs.pop(number)
        for job in list(run.jobs.values()):
            self._forget(job)
            if job.stage not in lost:
                self._send(job.stage, AbortJob(job.id))
        if last is not None:
            run.stream.finish(last)
