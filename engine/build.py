"""Puts an engine together, in the thread or the process that runs it."""

from __future__ import annotations

import logging

from engine.admission import Admission
from engine.api import EngineConfig
from engine.calibration import calibrate
from engine.capacity import plan_slots
from engine.core import EngineCore
from engine.model import LockstepModel
from engine.stages.kinds import build_stages

logger = logging.getLogger(__name__)


def build_core(model: LockstepModel, config: EngineConfig) -> EngineCore:
    """The engine of a new model. Where the number of slots or the admission depends on it, the
    model's steps are measured first. Raises EngineError.
    """
    spec = model.spec
    slots = config.slots if isinstance(config.slots, int) else spec.slots
    frame_s = spec.frame_size / spec.sample_rate
    admission, plan = None, None
    if config.admission == "measured":
        admission = Admission(calibrate(model), frame_s, slots, by_memory=spec.slots_by_memory)
        plan = admission.plan
    elif spec.slots_by_memory:
        measured = calibrate(model)
        plan = plan_slots(measured.curve, frame_s=frame_s, most=slots, piece_s=measured.piece_s)
        slots = plan.slots
    if plan is not None and plan.reason:
        logger.info("%s", plan.reason)
    return EngineCore(
        model,
        slots or None,
        max_in_flight=config.max_in_flight,
        step_mode=config.step_mode,
        stages=build_stages(config.chat),
        admission=admission,
        capacity=plan.reason if plan else "",
    )
