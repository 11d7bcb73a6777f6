"""All stages of an engine's owner: one desk, and the homes where its stages run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.api import EngineError, NotServed
from engine.gate import Gate
from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.desk import RequestDesk
from engine.stages.kinds import KINDS
from engine.stages.messages import JobCommand, JobEvent
from engine.stages.stream import RequestStream
from engine.stages.values import ChatRequest, StageStats

_NONE = (
    "No chat model is served here. To serve one, install duplex-media-server[vllm] and name the "
    "model under `chat` in the configuration; docs/chat.md shows how."
)


class StageHome(Protocol):
    """A process of its own in which stages run, seen from the event loop."""

    def start(self) -> None:
        """Begins to load, and goes on by itself whenever it must be started again."""
        ...

    async def stop(self) -> None:
        """Ends it; idempotent, bounded in time."""
        ...

    def send(self, command: JobCommand) -> None:
        """Tells it. Raises EngineUnavailable or NotServed for a job that it can't begin."""
        ...

    @property
    def stats(self) -> tuple[StageStats, ...]:
        """Its gauges, as its scheduler has told them last."""
        ...


class StageService:
    """Requests, from their admission to their end, whichever process works on them."""

    def __init__(
        self,
        chat: PipelineConfig | None,
        tell_engine: Callable[[JobCommand], None],
        gate: Gate,
    ) -> None:
        """`tell_engine` gives commands to the engine; raises EngineUnavailable for a StartJob
        while there is none. The homes give way at the `gate`. Raises PipelineError.
        """
        self._tell_engine = tell_engine
        self._gate = gate
        self._desk: RequestDesk | None = None
        self._homes: dict[str, StageHome] = {}
        self._in_engine: frozenset[str] = frozenset()
        if chat is not None:
            self._desk = RequestDesk(chat, self._send)
            self._in_engine = frozenset(
                name for name, stage in chat.stages.items() if KINDS[stage.kind].home == "engine"
            )
            self._homes = {
                name: self._vllm(name, stage)
                for name, stage in chat.stages.items()
                if KINDS[stage.kind].home == "vllm"
            }

    def start(self) -> None:
        """Starts the homes; they load beside the engine, which doesn't wait for them."""
        for home in self._homes.values():
            home.start()

    async def stop(self) -> None:
        """Ends the homes. Idempotent."""
        for home in self._homes.values():
            await home.stop()

    def submit(self, request: ChatRequest) -> RequestStream:
        """Admits a request. Raises NotServed, TooManyRequests or EngineUnavailable."""
        if self._desk is None:
            raise NotServed(_NONE)
        return self._desk.submit(request)

    def take(self, event: JobEvent) -> None:
        """Something has come of a job."""
        if self._desk is not None:
            self._desk.take(event)

    def lose_engine(self, error: EngineError) -> None:
        """The engine is gone, and with it the requests that it was working on."""
        self._lose(self._in_engine, error)

    def close(self, error: EngineError) -> None:
        """Ends every stream with the error; nothing is admitted any more."""
        if self._desk is not None:
            self._desk.close(error)

    @property
    def stats(self) -> tuple[StageStats, ...]:
        """The gauges of stages that don't run in the engine."""
        return tuple(stats for home in self._homes.values() for stats in home.stats)

    def _vllm(self, name: str, stage: StageConfig) -> StageHome:
        from engine.stages.vllm.home import VllmHome

        return VllmHome(
            name,
            stage,
            self._gate,
            take=self.take,
            lose=lambda error: self._lose(frozenset((name,)), error),
        )

    def _lose(self, stages: frozenset[str], error: EngineError) -> None:
        if self._desk is not None:
            self._desk.lose(stages, error)

    def _send(self, stage: str, command: JobCommand) -> None:
        home = self._homes.get(stage)
        if home is None:
            self._tell_engine(command)
        else:
            home.send(command)
