"""The kinds of stages that a deploy file may name, and what each of them can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from engine.stages.config import PipelineConfig
from engine.stages.values import Modality

if TYPE_CHECKING:
    from engine.stages.scheduler import StageScheduler


class EchoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the `echo` stage can be told."""

    step_ms: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    """Imitates a model: each word keeps the device busy for so long."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Which one."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the `vllm` stage can be told."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    """A model directory or a Hugging Face repository id."""
    memory: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.3
    """Its share of the device's memory."""
    engine_args: dict[str, object] = {}
    """vLLM's own engine arguments, passed on untouched."""
    tool_parser: str | None = None
    """vLLM's name of the way in which the model writes tool calls. None: it calls none."""


class StageKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of stage takes and makes, and where it runs."""

    accepts: frozenset[Modality]
    produces: Modality
    options: type[EchoOptions] | type[VllmOptions]
    home: Literal["engine", "vllm"] = "engine"
    """"engine": between the engine's own steps. "vllm": in vLLM's process."""


KINDS: Final[Mapping[str, StageKind]] = {
    "echo": StageKind(
        accepts=frozenset(("messages", "text")), produces="text", options=EchoOptions
    ),
    "vllm": StageKind(
        accepts=frozenset(("messages",)), produces="text", options=VllmOptions, home="vllm"
    ),
}


def build_stages(pipeline: PipelineConfig | None) -> StageScheduler:
    """The stages of a pipeline that run in the engine. It has passed `check_pipeline`."""
    from engine.stages.echo import EchoStage
    from engine.stages.scheduler import StageScheduler

    stages = {} if pipeline is None else pipeline.stages
    return StageScheduler(
        {
            name: (EchoStage(msgspec.convert(stage.options, EchoOptions)), stage.max_running)
            for name, stage in stages.items()
            if KINDS[stage.kind].home == "engine"
        }
    )
