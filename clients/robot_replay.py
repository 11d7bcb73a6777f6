"""Sends recorded observations to a policy, as a robot would, and keeps its actions."""

from __future__ import annotations

import asyncio
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from clients.errors import BadEvent, ClientError
from clients.latency import Percentiles, percentiles
from clients.robot import connect
from media.ndarray_msgpack import Array, CodecError, Value

Progress = Callable[[int, int], None]
"""Is told observations answered, and observations in all."""


class RecordingError(ClientError):
    """A file that holds no recorded observations. Says what is wrong."""


class RobotReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a replay."""

    inferences: int
    horizon: int
    """Actions in a reply."""
    dim: int
    """Numbers in an action."""
    latency: Percentiles | None
    """From sending an observation to its actions."""
    policy: Percentiles | None
    """What the policy itself took, as the server says."""
    late: int
    """Observations sent later than their turn, with a rate."""
    output: str | None


def read_recording(path: Path) -> tuple[int, dict[str, Array]]:
    """The steps [T] in an NPZ file, and its arrays: [T, ...] each, or [] for what stays the same.

    Raises RecordingError.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            fields: dict[str, Array] = dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RecordingError(f"{path} can't be read as NPZ: {error}") from error
    lengths = {name: len(values) for name, values in fields.items() if values.ndim}
    steps = next(iter(lengths.values()), 0)
    if not steps:
        raise RecordingError(f"{path} has no array with a row for each step")
    for name, length in lengths.items():
        if length != steps:
            raise RecordingError(f"{path}: {name} has {length} steps, others have {steps}")
    return steps, fields


def observations(steps: int, fields: dict[str, Array]) -> Iterator[dict[str, object]]:
    """The observation of each step. Text is sent as text."""
    for step in range(steps):
        yield {
            name: _sent(values[step] if values.ndim else values) for name, values in fields.items()
        }


async def replay(
    recording: Path,
    out: Path | None,
    *,
    url: str,
    api_key: str | None = None,
    session_id: str | None = None,
    rate_hz: float | None = None,
    on_progress: Progress | None = None,
) -> RobotReplayResult:
    """Sends each observation once the one before is answered, and with `rate_hz` in its turn.

    `out` becomes an NPZ file with `actions` [T, horizon, dim]. Raises ClientError.
    """
    steps, fields = read_recording(recording)
    actions: list[Array] = []
    latencies: list[float] = []
    policy_ms: list[float] = []
    late = 0
    async with connect(url, api_key=api_key) as policy:
        began = time.monotonic()
        for step, observation in enumerate(observations(steps, fields)):
            if session_id is not None:
                observation["session_id"] = session_id
            if rate_hz is not None:
                wait = began + step / rate_hz - time.monotonic()
                late += wait < -1 / rate_hz
                await asyncio.sleep(max(0.0, wait))
            sent = time.perf_counter()
            try:
                reply = await policy.infer(observation)
            except CodecError as error:
                raise RecordingError(f"{recording}: {error}") from error
            latencies.append(time.perf_counter() - sent)
            actions.append(_actions(reply))
            if (took := _policy_ms(reply)) is not None:
                policy_ms.append(took)
            if on_progress is not None:
                on_progress(step + 1, steps)
    stacked = _stacked(actions)
    if out is not None:
        np.savez_compressed(out, actions=stacked)
    return RobotReplayResult(
        inferences=steps,
        horizon=stacked.shape[1],
        dim=stacked.shape[2],
        latency=percentiles(latencies),
        policy=percentiles([ms / 1e3 for ms in policy_ms]),
        late=late,
        output=None if out is None else str(out),
    )


def _sent(value: Array | np.generic) -> object:
    return value.item() if value.ndim == 0 and value.dtype.kind == "U" else value


def _actions(reply: dict[str, Value]) -> Array:
    actions = reply.get("actions")
    if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.dtype.kind not in "fiu":
        raise BadEvent("the reply has no actions [horizon, dim]")
    return actions


def _policy_ms(reply: dict[str, Value]) -> float | None:
    timing = reply.get("policy_timing")
    took = timing.get("infer_ms") if isinstance(timing, dict) else None
    return float(took) if isinstance(took, int | float) else None


def _stacked(actions: list[Array]) -> Array:
    if len({each.shape for each in actions}) > 1:
        raise BadEvent("the replies' actions are of different shapes")
    return np.stack(actions)
