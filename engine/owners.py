"""Several owners of one engine: those that connect to its listening socket, and the one that
started it.

Each numbers its leases, jobs and questions from 0, as if it were alone; here they get names that
are the engine's own. An owner that hangs up, or doesn't read, takes with it what was its own and
nothing else: its slots are free for the others. When the first one hangs up the engine ends.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from engine.api import EngineSpec, Lease, StepOutput
from engine.channel import Loaded, pack
from engine.messages import (
    Close,
    Command,
    Event,
    GetStats,
    Live,
    Open,
    Outputs,
    Refused,
    SlotsChanged,
    StatsTaken,
)
from engine.port import OwnerPort
from engine.shm import RingFull
from engine.stages.messages import AbortJob, Grant, JobEnded, JobFailed, Produced, StartJob

logger = logging.getLogger(__name__)

MAX_UNSENT: Final = 1 << 22
"""Bytes that wait for an owner who doesn't read; with more it is given up."""

UNKNOWN: Final = -1
"""In place of a lease or a job that has ended; the engine counts its frames as stale."""


class _Owner(OwnerPort):
    """One of them, with the engine's names for what is its own."""

    def __init__(self, channel: socket.socket, memory: tuple[int, int], spec: EngineSpec) -> None:
        super().__init__(channel, memory, spec)
        self.leases: dict[int, int] = {}
        self.jobs: dict[int, int] = {}
        self._names: dict[int, int] = {}
        self._unsent = bytearray()

    def core_lease(self, lease: int) -> int:
        return self.leases.get(lease, UNKNOWN)

    def own_lease(self, lease: int) -> int:
        return self._names[lease]

    def name_lease(self, lease: int, core: int) -> None:
        self.leases[lease] = core
        self._names[core] = lease

    def forget_lease(self, lease: int) -> None:
        self._names.pop(self.leases.pop(lease, UNKNOWN), None)

    def send(self, event: Event) -> None:
        """Raises OSError or RingFull if the owner is gone or doesn't read."""
        self.tell(self._packed(event))

    def tell(self, data: bytes) -> None:
        """Sends what can be sent, and keeps the rest, so that nobody else waits for this one."""
        self._unsent += data
        if len(self._unsent) > MAX_UNSENT:
            raise BlockingIOError("it doesn't read")
        self.flush()

    def flush(self) -> None:
        """Goes on sending."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.channel.send(self._unsent, socket.MSG_DONTWAIT)]

    @property
    def behind(self) -> bool:
        """Whether something waits for it to read."""
        return bool(self._unsent)


class Owners:
    """Implements `engine.serve.Port` for all of them together."""

    def __init__(
        self,
        listener: socket.socket,
        channel: socket.socket,
        memory: tuple[int, int],
        spec: EngineSpec,
    ) -> None:
        """`channel` and `memory` are the first owner's."""
        self._spec = spec
        self._listener = listener
        self._first = _Owner(channel, memory, spec)
        self._count = itertools.count()
        self._owner_of: dict[int, tuple[_Owner, int]] = {}
        """Of each lease, job and question: who it belongs to, and what it is called there."""
        self._owners: dict[int, _Owner] = {}
        self._arriving: dict[int, socket.socket] = {}
        self._lost: list[_Owner] = []
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._enter(self._first)

    def receive(self, *, wait_s: float | None) -> Iterable[Command] | None:
        """What has come in, of each owner in order. None: the first one is gone."""
        commands: list[Command] = []
        wait_ms = None if wait_s is None else 1000 * wait_s
        ready = self._poll.poll(0 if self._lost else wait_ms)
        for descriptor, event in ready:
            if event & select.POLLOUT and (behind := self._owners.get(descriptor)) is not None:
                self._go_on(behind)
            if not event & ~select.POLLOUT:
                continue
            if descriptor == self._listener.fileno():
                self._accept()
            elif descriptor in self._arriving:
                self._let_in(self._arriving.pop(descriptor))
            elif (owner := self._owners.get(descriptor)) is not None:
                received = self._receive_from(owner)
                if received is not None:
                    commands += [self._down(owner, command) for command in received]
                elif owner is self._first:
                    return None
                else:
                    self._lose(owner, "it has hung up")
        for owner in self._lost:
            commands += self._what_it_leaves(owner)
        self._lost.clear()
        return commands

    def send(self, event: Event) -> None:
        """Tells each owner what is its own."""
        match event:
            case Outputs(outputs=outputs):
                for owner, its in self._split(outputs).items():
                    self._tell(owner, Outputs(its))
                    for output in reversed(its):
                        if not output.error:
                            break
                        self._end_lease(output.lease)
            case Live(lease=lease):
                if (found := self._owner_of.get(lease.id)) is not None:
                    self._tell(found[0], Live(Lease(found[1], lease.slot)))
            case Refused(lease=refused):
                if (found := self._end_lease(refused)) is not None:
                    self._tell(found[0], replace(event, lease=found[1]))
            case StatsTaken(request=request):
                if (found := self._owner_of.pop(request, None)) is not None:
                    self._tell(found[0], replace(event, request=found[1]))
            case SlotsChanged(slots=slots, capacity=capacity):
                self._spec = replace(self._spec, slots=slots, capacity=capacity)
                for owner in tuple(self._owners.values()):
                    self._tell(owner, event)
            case Produced(job=job):
                if (found := self._owner_of.get(job)) is not None:
                    self._tell(found[0], replace(event, job=found[1]))
            case JobEnded(job=job) | JobFailed(job=job):
                if (found := self._end_job(job)) is not None:
                    self._tell(found[0], replace(event, job=found[1]))

    # --- who is there ---------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            logger.warning("an owner could not be accepted: %s", error)
            return
        self._arriving[channel.fileno()] = channel
        self._poll.register(channel, select.POLLIN)

    def _let_in(self, channel: socket.socket) -> None:
        """An owner's first byte comes with the memory of its rings."""
        self._poll.unregister(channel)
        memory: list[int] = []
        try:
            _, memory, _, _ = socket.recv_fds(channel, 1, 2)
            if len(memory) != 2:
                raise OSError("it brought no memory")
            owner = _Owner(channel, (memory[0], memory[1]), self._spec)
            owner.tell(pack(Loaded(self._spec)))
        except OSError as error:
            logger.info("an owner did not come in: %s", error)
            channel.close()
        else:
            self._enter(owner)
        finally:
            for descriptor in memory:
                os.close(descriptor)

    def _enter(self, owner: _Owner) -> None:
        self._owners[owner.channel.fileno()] = owner
        self._watch(owner)

    def _watch(self, owner: _Owner) -> None:
        events = select.POLLIN | (select.POLLOUT if owner.behind else 0)
        self._poll.register(owner.channel, events)

    def _receive_from(self, owner: _Owner) -> Iterable[Command] | None:
        try:
            return owner.receive(wait_s=0)
        except OSError:
            return None

    def _lose(self, owner: _Owner, why: str) -> None:
        descriptor = owner.channel.fileno()
        if self._owners.pop(descriptor, None) is None:
            return
        logger.info("an owner is gone (%s); %d leases end", why, len(owner.leases))
        self._poll.unregister(descriptor)
        owner.channel.close()
        self._lost.append(owner)

    def _what_it_leaves(self, owner: _Owner) -> list[Command]:
        leases, jobs = [*owner.leases.values()], [*owner.jobs.values()]
        for core in leases:
            self._end_lease(core)
        for core in jobs:
            self._end_job(core)
        owner.close()
        return [*map(Close, leases), *map(AbortJob, jobs)]

    def _tell(self, owner: _Owner, event: Event) -> None:
        try:
            owner.send(event)
            self._watch(owner)
        except (OSError, RingFull) as error:
            if owner is self._first:
                raise
            self._lose(owner, str(error))

    def _go_on(self, owner: _Owner) -> None:
        with suppress(OSError):  # reading will show that it is gone
            owner.flush()
            self._watch(owner)

    # --- what is whose --------------------------------------------------------------------------

    def _down(self, owner: _Owner, command: Command) -> Command:
        match command:
            case Open(lease=lease):
                core = self._name(owner, lease)
                owner.name_lease(lease, core)
                return replace(command, lease=core)
            case Close(lease=lease):
                core = owner.core_lease(lease)
                self._end_lease(core)
                return Close(core)
            case GetStats(request=request):
                return GetStats(self._name(owner, request))
            case StartJob(job=job):
                owner.jobs[job] = core = self._name(owner, job)
                return replace(command, job=core)
            case AbortJob(job=job):
                core = owner.jobs.get(job, UNKNOWN)
                self._end_job(core)
                return AbortJob(core)
            case Grant(job=job):
                return replace(command, job=owner.jobs.get(job, UNKNOWN))
            case _:
                return command

    def _name(self, owner: _Owner, number: int) -> int:
        core = next(self._count)
        self._owner_of[core] = owner, number
        return core

    def _end_lease(self, core: int) -> tuple[_Owner, int] | None:
        found = self._owner_of.pop(core, None)
        if found is not None:
            found[0].forget_lease(found[1])
        return found

    def _end_job(self, core: int) -> tuple[_Owner, int] | None:
        found = self._owner_of.pop(core, None)
        if found is not None:
            found[0].jobs.pop(found[1], None)
        return found

    def _split(self, outputs: Sequence[StepOutput]) -> dict[_Owner, list[StepOutput]]:
        split: dict[_Owner, list[StepOutput]] = {}
        for output in outputs:
            if (found := self._owner_of.get(output.lease)) is not None:
                split.setdefault(found[0], []).append(output)
        return split
