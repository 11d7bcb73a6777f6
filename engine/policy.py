"""Robot policies: what one must have, how it is found, and how a batch runs through it.

Runs in the policy's own process, whose interpreter need not be ours: it needs NumPy, no other
package, and Python 3.10.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np

from media.ndarray_msgpack import Array, Value

Observation = dict[str, Value]
"""Fields by name: arrays, numbers, text."""

MAX_BATCH: Final = 32
"""Observations in one `infer_batch`, unless the policy has a `max_batch` of its own."""


class PolicyError(Exception):
    """A policy that can't be made, or that gave what is no action."""


class BadObservation(Exception):
    """For policies to raise: the observation lacks something. The robot is told the message."""


class Policy(Protocol):
    """What a factory returns.

    A policy may have more: `infer_batch(observations, resets)`, a result for each observation,
    is called with those of several robots at once, at most `max_batch` of them. It raises before
    it changes any state, or not at all: after an exception each is tried alone. And a policy with
    `end_session(session)` keeps state: it is given the keyword `session` (`sessions` for a batch),
    which names one robot's state, and is told when that state is not needed any more.
    """

    metadata: Mapping[str, object]
    """Sent to each robot when it connects."""

    def infer(self, obs: Observation, reset: bool = False) -> object:
        """Actions [horizon, dim] as an array or as "actions" in a map; one action [dim] is a
        horizon of 1. With `reset` the observation is the first of its session.
        """
        ...

    def close(self) -> None:
        """No more observations come."""
        ...


@dataclass(frozen=True)
class Request:
    """One robot's observation."""

    observation: Observation
    reset: bool
    session: str
    """Names the robot's state: of no other robot, and of no other episode of this one."""


@dataclass(frozen=True)
class Inference:
    """What a policy gave: `fields["actions"]` is [horizon, dim]."""

    fields: dict[str, object]
    seconds: float
    """How long the policy took, for the whole batch."""


class PolicyRunner:
    """A policy with its optional parts settled."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._infer_batch = cast(
            Callable[..., Sequence[object]] | None, getattr(policy, "infer_batch", None)
        )
        self._end_session = cast(
            Callable[[str], object] | None, getattr(policy, "end_session", None)
        )
        self.max_batch = 1
        if self._infer_batch is not None:
            self.max_batch = int(getattr(policy, "max_batch", MAX_BATCH))
        self.metadata = policy.metadata

    def run(self, requests: Sequence[Request]) -> list[Inference | Exception]:
        """An inference for each request, or the exception that its observation caused."""
        if self._infer_batch is not None and requests:
            try:
                return list(self._batch(self._infer_batch, requests))
            except Exception as error:
                if len(requests) == 1:
                    return [error]
                return [outcome for request in requests for outcome in self.run([request])]
        return [self._alone(request) for request in requests]

    def end_session(self, session: str) -> None:
        """A robot's state is not needed any more."""
        if self._end_session is not None:
            self._end_session(session)

    def close(self) -> None:
        """Closes the policy."""
        self._policy.close()

    def _alone(self, request: Request) -> Inference | Exception:
        more = {} if self._end_session is None else {"session": request.session}
        began = time.perf_counter()
        try:
            result = self._policy.infer(request.observation, reset=request.reset, **more)
            return Inference(_fields(result), time.perf_counter() - began)
        except Exception as error:
            return error

    def _batch(
        self, infer: Callable[..., Sequence[object]], requests: Sequence[Request]
    ) -> list[Inference]:
        more = {}
        if self._end_session is not None:
            more["sessions"] = [request.session for request in requests]
        began = time.perf_counter()
        results = infer(
            [request.observation for request in requests],
            [request.reset for request in requests],
            **more,
        )
        took = time.perf_counter() - began
        if len(results) != len(requests):
            raise PolicyError(f"infer_batch gave {len(results)} results for {len(requests)}")
        return [Inference(_fields(result), took) for result in results]


def load_policy(name: str, options: Mapping[str, object]) -> PolicyRunner:
    """Calls the factory `package.module:factory` with the options.

    Raises PolicyError in words for whoever wrote the name, the options or the policy.
    """
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise PolicyError(f"policy {name}: there is no module {error.name}") from error
    except AttributeError as error:
        raise PolicyError(f"policy {name}: {module} has no {attribute}") from error
    except Exception as error:
        raise PolicyError(f"policy {name}: {module} can't be imported: {error}") from error
    try:
        policy = factory(**options)
    except Exception as error:
        raise PolicyError(f"policy {name}: {type(error).__name__}: {error}") from error
    for method in ("infer", "close"):
        if not callable(getattr(policy, method, None)):
            raise PolicyError(f"policy {name}: what its factory returns has no {method}")
    if not isinstance(getattr(policy, "metadata", None), Mapping):
        raise PolicyError(f"policy {name}: what its factory returns has no metadata, a dict")
    runner = PolicyRunner(policy)
    if runner.max_batch < 1:
        raise PolicyError(f"policy {name}: max_batch is {runner.max_batch}, not at least 1")
    return runner


def _fields(result: object) -> dict[str, object]:
    fields = dict(result) if isinstance(result, Mapping) else {"actions": result}
    if "actions" not in fields:
        raise PolicyError("the policy's result has no actions")
    actions: Array = np.asarray(cast(Any, fields["actions"]))
    if actions.dtype.kind not in "fiu":
        raise PolicyError(f"the policy's actions are of {actions.dtype}, not numbers")
    if actions.ndim not in (1, 2):
        raise PolicyError(f"the policy's actions have the shape {actions.shape}, not horizon, dim")
    return fields | {"actions": np.atleast_2d(actions)}
