"""What the deploy file says about stages: read here, checked by `engine.stages.graph`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.graph import PipelineError, check_pipeline


class StageSettings(BaseModel):
    """One stage; see `engine.stages.config.StageConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    inputs: tuple[str, ...] = ()
    final: bool = False
    max_running: int = Field(16, ge=1, le=4096)
    options: dict[str, object] = {}


class PipelineSettings(BaseModel):
    """A pipeline of stages; see `engine.stages.config.PipelineConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """What requests call it."""
    stages: dict[str, StageSettings]
    max_requests: int = Field(64, ge=1, le=65_536)
    """Requests at a time, waiting and running; more are refused."""

    @model_validator(mode="after")
    def _is_a_pipeline(self) -> PipelineSettings:
        try:
            check_pipeline(self.config())
        except PipelineError as error:
            raise ValueError(str(error)) from error
        return self

    def config(self) -> PipelineConfig:
        """What the engine is told."""
        return PipelineConfig(
            model=self.model,
            max_requests=self.max_requests,
            stages={name: StageConfig(**dict(stage)) for name, stage in self.stages.items()},
        )
