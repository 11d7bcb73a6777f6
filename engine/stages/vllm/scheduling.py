"""vLLM's schedulers, which give way to conversations: no step begins while the gate is closed.

vLLM imports this module by name in the process in which it schedules.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any, Final

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine.gate import Gate
from engine.stages.vllm.messages import GATE_ENV

logger = logging.getLogger(__name__)

LONGEST_S: Final = 0.05
"""A step waits no longer than that, however busy the conversations are: chat goes on, slowly."""


def give_way(config: VllmConfig) -> None:
    """Has vLLM use the schedulers below in place of its own."""
    own = config.scheduler_config.get_scheduler_cls()
    for ours in (YieldingScheduler, YieldingAsyncScheduler):
        if own is ours.__mro__[2]:
            config.scheduler_config.scheduler_cls = f"{__name__}.{ours.__name__}"
            return
    logger.warning("%s doesn't give way to conversations", own.__name__)


@cache
def _gate() -> Gate | None:
    path = os.environ.get(GATE_ENV, "")
    try:
        return Gate.at(path)
    except OSError as error:
        logger.warning("chat doesn't give way to conversations: %s", error)
        return None


class _Yielding:
    """Waits before each step."""

    def schedule(self, *args: Any, **options: Any) -> Any:
        """vLLM's own, in time."""
        if (gate := _gate()) is not None:
            gate.wait(LONGEST_S)
        return super().schedule(*args, **options)  # type: ignore[misc]


class YieldingScheduler(_Yielding, Scheduler):  # type: ignore[misc]  # untyped here
    """For steps one after the other."""


class YieldingAsyncScheduler(_Yielding, AsyncScheduler):  # type: ignore[misc]  # untyped here
    """For steps that are scheduled while the one before still runs."""
