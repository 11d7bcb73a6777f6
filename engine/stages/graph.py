"""Checks a pipeline before anything is loaded, and says in which order its stages depend."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Final

import msgspec

from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.kinds import KINDS

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class PipelineError(Exception):
    """A pipeline that can't be. `field` is the path within its configuration."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def check_pipeline(pipeline: PipelineConfig) -> str:
    """The name of the final stage of a pipeline that takes messages and makes text.

    Raises PipelineError that names the field at fault.
    """
    stages = pipeline.stages
    if not stages:
        raise PipelineError("stages", "a pipeline has at least one stage")
    for name, stage in stages.items():
        _check_stage(name, stage)
    for name, stage in stages.items():
        _check_inputs(name, stage, stages)
    _check_order(stages)
    final = _final(stages)
    _check_use(stages, final)
    for name, stage in stages.items():
        _check_capabilities(name, stage, stages)
    if KINDS[stages[final].kind].produces != "text":
        raise PipelineError(
            f"stages.{final}.kind", f"{stages[final].kind} makes no text, and the answer is text"
        )
    return final


def _check_stage(name: str, stage: StageConfig) -> None:
    at = f"stages.{name}"
    if not _NAME.fullmatch(name):
        raise PipelineError(at, "a stage's name is lower-case letters, digits and _")
    if stage.kind not in KINDS:
        raise PipelineError(f"{at}.kind", _unknown(stage.kind, KINDS, "kind"))
    if stage.max_running < 1:
        raise PipelineError(f"{at}.max_running", f"at least 1, not {stage.max_running}")
    try:
        msgspec.convert(stage.options, KINDS[stage.kind].options)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise PipelineError(f"{at}.options{where.removesuffix('`')}", what) from error


def _check_inputs(name: str, stage: StageConfig, stages: dict[str, StageConfig]) -> None:
    at = f"stages.{name}.inputs"
    for source in stage.inputs:
        if source not in stages:
            raise PipelineError(at, _unknown(source, stages, "stage"))
    if len(set(stage.inputs)) < len(stage.inputs):
        raise PipelineError(at, "a stage is named twice")


def _check_order(stages: dict[str, StageConfig]) -> None:
    try:
        TopologicalSorter({name: stage.inputs for name, stage in stages.items()}).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        raise PipelineError(
            f"stages.{ring[0]}.inputs", f"the stages wait in a circle: {' -> '.join(ring)}"
        ) from error


def _final(stages: dict[str, StageConfig]) -> str:
    final = [name for name, stage in stages.items() if stage.final]
    if not final:
        raise PipelineError("stages", "no stage is final: one has `final: true`")
    if len(final) > 1:
        raise PipelineError(f"stages.{final[1]}.final", f"{final[0]} is final already")
    return final[0]


def _check_use(stages: dict[str, StageConfig], final: str) -> None:
    used, unseen = {final}, [final]
    while unseen:
        new = set(stages[unseen.pop()].inputs) - used
        used |= new
        unseen += new
    for name in stages:
        if name not in used:
            raise PipelineError(f"stages.{name}", f"nothing comes of it: {final} doesn't need it")


def _check_capabilities(name: str, stage: StageConfig, stages: dict[str, StageConfig]) -> None:
    accepts = KINDS[stage.kind].accepts
    takes = " or ".join(sorted(accepts))
    if not stage.inputs and "messages" not in accepts:
        raise PipelineError(
            f"stages.{name}.inputs", f"{stage.kind} takes {takes}, and a request is messages"
        )
    for source in stage.inputs:
        made = KINDS[stages[source].kind].produces
        if made not in accepts:
            raise PipelineError(
                f"stages.{name}.inputs", f"{stage.kind} takes {takes}, and {source} makes {made}"
            )


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"
