"""One engine on each of several devices, used as one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import fields, replace

from engine.api import (
    Engine,
    EngineConfig,
    EngineError,
    EngineLost,
    EngineSpec,
    EngineStats,
    EngineUnavailable,
    Frame,
    Lease,
    NoFreeSlot,
    OpenParams,
    Request,
    StepOutput,
)
from engine.attached import AttachedEngine
from engine.child import ChildEngine
from engine.devices import check_device
from engine.gate import Gate
from engine.stages.values import ChatRequest
from engine.stream import read
from engine.supervisor import Place, SupervisedEngine

ANSWER_S: Final = 1.0
"""How long one engine may take to tell its gauges, so that the others' are told in any case."""


class Fleet:
    """Implements `engine.api.Engine` over several engines with the same model.

    A session is placed where the smallest part of the slots is taken, and among such engines where
    steps have been shortest; where that engine refuses or dies, on the next. The death of one ends
    its own sessions, and it is started again while the others serve. Requests of stages go to the
    first.
    """

    def __init__(self, builders: Mapping[str, Callable[[Place], SupervisedEngine]]) -> None:
        """`builders`: at least one, by the name of the device."""
        self._changed = asyncio.Event()
        self._gate = Gate()
        self._engines = [
            build(Place(self._changed, name, index, len(builders), self._gate))
            for index, (name, build) in enumerate(builders.items())
        ]

    @property
    def spec(self) -> EngineSpec:
        """What is served by all together. Raises EngineUnavailable before the first start."""
        specs = [engine.spec for engine in self._engines]
        slots = sum(spec.slots for spec in specs)
        reasons = [
            f"{engine.name}: {spec.capacity or spec.slots}"
            for engine, spec in zip(self._engines, specs, strict=True)
        ]
        return replace(
            specs[0],
            slots=slots,
            most_slots=sum(spec.all_slots for spec in specs),
            device=", ".join(engine.name for engine in self._engines),
            weight_bytes=sum(spec.weight_bytes for spec in specs),
            capacity=f"{slots} ({'; '.join(reasons)})",
        )

    @property
    def ready(self) -> bool:
        """True while sessions can be opened somewhere."""
        return any(engine.ready for engine in self._engines)

    async def start(self) -> None:
        """Loads the model on all devices; raises EngineError if one can't, and says which."""
        try:
            async with asyncio.TaskGroup() as starting:
                for engine in self._engines:
                    starting.create_task(_start(engine))
        except* EngineError as failures:
            raise failures.exceptions[0] from None

    async def stop(self) -> None:
        """Ends all engines; idempotent, bounded in time. `steps` ends."""
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        self._gate.close()

    async def open(self, params: OpenParams) -> Lease:
        """Takes a slot and prefills it; returns when it is live.

        Raises NoFreeSlot if there is none anywhere, BadParams, EngineUnavailable or EngineLost. A
        cancelled open leaves nothing behind.
        """
        refusal: EngineError = EngineUnavailable("all engines are starting again")
        for engine in sorted(filter(_is_ready, self._engines), key=_occupancy):
            try:
                return await engine.open(params)
            except (NoFreeSlot, EngineUnavailable, EngineLost) as error:
                if not isinstance(refusal, NoFreeSlot):
                    refusal = error
        raise refusal

    def feed(self, frames: Sequence[Frame]) -> None:
        """Hands each frame to the engine of its lease. What one of them can't take is raised when
        the others have theirs.
        """
        shares: list[list[Frame]] = [[] for _ in self._engines]
        for frame in frames:
            shares[frame.lease % len(shares)].append(frame)
        failure: EngineError | None = None
        for engine, share in zip(self._engines, shares, strict=True):
            try:
                if share:
                    engine.feed(share)
            except EngineError as error:
                failure = error
        if failure is not None:
            raise failure

    def steps(self) -> AsyncIterator[list[StepOutput]]:
        """Yields the steps of all engines; of one engine, in order. Has one consumer.

        Raises EngineLost once for each death; a new call goes on with the others and its
        successor. Ends at `stop`.
        """
        return read([engine.stream for engine in self._engines], self._changed)

    async def close(self, lease: Lease) -> None:
        """Gives the slot back. Idempotent; frames that wait are dropped."""
        await self._engines[lease.id % len(self._engines)].close(lease)

    def submit(self, request: ChatRequest) -> Request:
        """Admits a request to the stages, which are the first engine's.

        Raises NotServed, TooManyRequests or EngineUnavailable.
        """
        return self._engines[0].submit(request)

    async def stats(self) -> EngineStats:
        """Of all engines together, and of each. Raises EngineUnavailable if none answers."""
        each = await asyncio.gather(*map(_stats, self._engines))
        up = [stats for stats in each if stats.up]
        if not up:
            raise EngineUnavailable("no engine answers")
        late = [stats.latency_s for stats in up if stats.latency_s is not None]
        return replace(
            _NOTHING,
            **{name: sum(getattr(stats, name) for stats in each) for name in _SUMMED},
            up=True,
            latency_s=min(late, default=None),
            utilisation=sum(stats.utilisation for stats in up) / len(up),
            engines=tuple(each),
            stages=each[0].stages,
        )


_NOTHING: Final = EngineStats(
    slots=0,
    free=0,
    prefill=0,
    live=0,
    draining=0,
    queued_frames=0,
    steps=0,
    frames=0,
    stale_frames=0,
    restarts=0,
    up=False,
)
_SUMMED: Final = (
    *(field.name for field in fields(EngineStats) if field.type is int),
    "step_seconds",
)


async def _start(engine: SupervisedEngine) -> None:
    try:
        await engine.start()
    except EngineUnavailable:
        raise
    except EngineError as error:
        raise EngineError(f"{engine.name}: {error}") from error


def _is_ready(engine: SupervisedEngine) -> bool:
    return engine.ready


def _occupancy(engine: SupervisedEngine) -> tuple[float, float]:
    return engine.held / engine.spec.slots, engine.step_s


async def _stats(engine: SupervisedEngine) -> EngineStats:
    """Of one engine, or that it doesn't answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await engine.stats()
    except (EngineError, TimeoutError):
        return replace(_NOTHING, device=engine.name, restarts=engine.restarts)


def build_engine(config: EngineConfig) -> Engine:
    """A child process for the model on `config.device`, or on each of `config.devices`.

    Raises EngineError for devices or a number of slots that can't be.
    """
    return _built(shares(config), lambda _, share, place: ChildEngine(share, place=place))


@contextmanager
def listening_engine(config: EngineConfig, folder: Path) -> Iterator[Engine]:
    """The same, for other processes, too: they use it by `attached_engine`. `folder` must be there
    as long as it.
    """
    with ExitStack() as stack:
        listeners: dict[str, socket.socket] = {}
        for name in shares(config):
            listeners[name] = stack.enter_context(socket.socket(socket.AF_UNIX))
            listeners[name].bind(str(_path(folder, name)))
            listeners[name].listen()
        yield _built(
            shares(config),
            lambda name, share, place: ChildEngine(share, listener=listeners[name], place=place),
        )


def attached_engine(config: EngineConfig, folder: Path) -> Engine:
    """What another process runs by `listening_engine`, of the same config and folder."""
    return _built(
        shares(config), lambda name, _, place: AttachedEngine(str(_path(folder, name)), place=place)
    )


def _path(folder: Path, name: str) -> Path:
    return folder / f"engine-{name}"


def _built(
    configs: Mapping[str, EngineConfig],
    build: Callable[[str, EngineConfig, Place | None], SupervisedEngine],
) -> Engine:
    if list(configs) == [""]:
        return build("", configs[""], None)
    return Fleet({name: partial(build, name, share) for name, share in configs.items()})


def shares(config: EngineConfig) -> dict[str, EngineConfig]:
    """Of each engine on `config.devices`, by its name: its part of the slots, and of the CPU's
    threads. The first has the chat. Without a list there is one, without a name.

    Raises EngineError for no device, for a GPU twice, or fewer slots than devices.
    """
    count = len(config.devices)
    if not count:
        return {"": config}
    for device in config.devices:
        check_device(device)
        if device != "cpu" and (device == "auto" or config.devices.count(device) > 1):
            raise EngineError(f"devices: {device} can't be one of several, or twice")
    if isinstance(config.slots, int) and config.slots < count:
        raise EngineError(f"{config.slots} slots can't be spread over {count} devices")
    threads = config.threads
    if config.devices.count("cpu") > 1 and threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, (os.cpu_count() or 1) // count)
    found: dict[str, EngineConfig] = {}
    for index, device in enumerate(config.devices):
        slots = config.slots
        if isinstance(slots, int):
            slots = slots // count + (index < slots % count)
        name = f"cpu:{index}" if device == "cpu" else device
        found[name] = replace(
            config,
            device=device,
            devices=(),
            slots=slots,
            threads=threads,
            chat=None if index else config.chat,
        )
    return found
