"""Callers of an engine's loop, in place of its owner: each side of `engine.serve.serve`'s port."""

from __future__ import annotations

import heapq
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.api import Frame, Lease, OpenParams, Pcm
from engine.messages import Close, Command, Event, Feed, Live, Open, Outputs, Refused
from recipes.bench.gpu.results import Figures, percentiles


@dataclass(frozen=True, slots=True)
class Visit:
    """Someone who joins while others talk."""

    params: OpenParams
    kind: str
    """Under this name the time from open to live is kept."""
    stays: bool
    """Takes a random caller's place; else leaves as soon as it is live."""


@dataclass(slots=True)
class Joined:
    """How visits went, in milliseconds."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    """From open to live, by kind."""
    longest_step: float = 0.0
    """Of the steps that ended while somebody joined."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Of the frames that came out while somebody joined."""


class PacedCallers:
    """Callers in real time, each with a frame every frame's time, at random phases.

    A frame's latency runs from the moment it is ready, in host memory, to its sound in host
    memory. The clock starts a few seconds after all are live. A frame without an answer at the end
    counts with the time it has waited.
    """

    def __init__(
        self,
        callers: int,
        sounds: Pcm,
        *,
        frame_s: float,
        seconds: float,
        visits: Iterator[Visit],
        visit_every_s: float,
        on_live: Callable[[int], None],
        settle_s: float = 3.0,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """sounds: [n, frame_size], what they say in turn. on_live: called with a row gone live."""
        self.latencies = array("d")
        """Milliseconds, of frames answered in the measured time."""
        self.steps = array("d")
        """Milliseconds, of the steps then."""
        self.joined = Joined()
        self.rows = 0
        """Frames answered by those steps."""
        self.refused = 0
        self.dropped = 0
        """Callers whose frames piled up until the engine ended them."""
        self._frame_s, self._seconds, self._sounds = frame_s, seconds, sounds
        self._visits, self._visit_every_s, self._settle_s = visits, visit_every_s, settle_s
        self._on_live, self._clock, self._sleep = on_live, clock, sleep
        self._random = random.Random(seed)
        self._opening = dict.fromkeys(range(1, callers + 1), 0.0)
        self._visiting: dict[int, Visit] = {}
        self._next_lease = callers + 1
        self._live: dict[int, None] = {}
        self._due: list[tuple[float, int, int]] = []
        """A heap of frames to come: when, lease, index."""
        self._waiting: dict[tuple[int, int], float] = {}
        self._outbox: list[Command] = [
            Open(lease, OpenParams(seed=lease)) for lease in self._opening
        ]
        self._start = self._end = self._next_visit = float("inf")

    def receive(self, *, wait_s: float | None) -> Sequence[Command] | None:
        """What is due by now; waits for something if told to. None: the time is over."""
        while True:
            now = self._clock()
            if now >= self._end:
                self._count_unanswered(now)
                return None
            if now >= self._next_visit:
                self._invite(now)
            frames: list[Frame] = []
            while self._due and self._due[0][0] <= now:
                due, lease, index = heapq.heappop(self._due)
                if lease not in self._live:
                    continue
                pcm = self._sounds[(lease + index) % len(self._sounds)]
                frames.append(Frame(lease, 0, index, pcm))
                self._waiting[lease, index] = due
                heapq.heappush(self._due, (due + self._frame_s, lease, index + 1))
            commands, self._outbox = self._outbox, []
            if frames:
                commands.append(Feed(frames, now))
            if commands or wait_s == 0:
                return commands
            next_frame = self._due[0][0] if self._due else float("inf")
            self._sleep(max(0.0, min(next_frame, self._next_visit, self._end, now + 1) - now))

    def send(self, event: Event) -> None:
        """Takes what the engine says."""
        now = self._clock()
        match event:
            case Outputs(outputs=outputs):
                measured = self._start <= now
                for output in outputs:
                    due = self._waiting.pop((output.lease, output.index), None)
                    if output.error:
                        self.dropped += 1
                        self._count_unanswered(now, output.lease)
                        self._live.pop(output.lease, None)
                    elif due is not None and measured:
                        self.latencies.append(1e3 * (now - due))
                        if self._visiting:
                            self.joined.latencies.append(1e3 * (now - due))
                if measured and (rows := outputs[0].timings.rows):
                    step_ms = 1e3 * outputs[0].timings.step_s
                    self.steps.append(step_ms)
                    self.rows += rows
                    if self._visiting:
                        self.joined.longest_step = max(self.joined.longest_step, step_ms)
            case Live(lease=lease):
                self._welcome(lease, now)
            case Refused(lease=lease):
                self.refused += 1
                self._opening.pop(lease, None)
                self._visiting.pop(lease, None)
                self._begin()

    def figures(self) -> Figures:
        """All of the measured time."""
        late = sum(latency > 1e3 * self._frame_s for latency in self.latencies)
        found = percentiles(self.latencies)
        found |= {
            "late_pct": 100 * late / max(1, len(self.latencies)),
            "frames": len(self.latencies),
            "rows_a_step": self.rows / max(1, len(self.steps)),
            "step_mean_ms": sum(self.steps) / max(1, len(self.steps)),
            "step_max_ms": max(self.steps, default=0.0),
            "busy_pct": 0.1 * sum(self.steps) / self._seconds,
            "dropped": self.dropped,
            "refused": self.refused,
        }
        for kind, waits in self.joined.waits.items():
            found |= {f"{kind}_p50_ms": float(np.median(waits)), f"{kind}_max_ms": max(waits)}
        return found

    def _welcome(self, lease: Lease, now: float) -> None:
        opened = self._opening.pop(lease.id)
        visit = self._visiting.pop(lease.id, None)
        if visit is not None:
            self.joined.waits.setdefault(visit.kind, []).append(1e3 * (now - opened))
            if not visit.stays:
                self._outbox.append(Close(lease.id))
                return
        self._on_live(lease.slot)
        self._live[lease.id] = None
        phase = self._random.uniform(0, self._frame_s)
        heapq.heappush(self._due, (self._clock() + phase, lease.id, 0))
        self._begin()

    def _begin(self) -> None:
        """Starts the clock when nobody of the first callers is being opened any more."""
        if self._end == float("inf") and not self._opening:
            now = self._clock()
            self._start = now + self._settle_s
            self._end = self._start + self._seconds if self._live else now
            self._next_visit = self._start

    def _invite(self, now: float) -> None:
        self._next_visit = now + self._visit_every_s
        visit = next(self._visits, None)
        if visit is None:
            self._next_visit = float("inf")
            return
        if visit.stays and self._live:
            leaver = self._random.choice(list(self._live))
            del self._live[leaver]
            self._outbox.append(Close(leaver))
        lease = self._next_lease
        self._next_lease += 1
        self._opening[lease] = now
        self._visiting[lease] = visit
        self._outbox.append(Open(lease, visit.params))

    def _count_unanswered(self, now: float, dropped: int | None = None) -> None:
        """Frames that are late already, of all callers or of one that was dropped."""
        for (lease, _), due in self._waiting.items():
            asked = lease in self._live if dropped is None else lease == dropped
            if asked and due >= self._start and now - due > self._frame_s:
                self.latencies.append(1e3 * (now - due))


class BusyCallers:
    """Callers as fast as the engine steps, who come and go: a frame of each of them in every turn.

    Ends after `frames` steps or `seconds`, and then closes every lease.
    """

    def __init__(
        self,
        callers: int,
        sounds: Pcm,
        *,
        frames: int,
        seconds: float,
        params: Callable[[int], OpenParams],
        change: float = 0.02,
        on_turn: Callable[[int], None] = lambda turn: None,
        seed: int = 0,
    ) -> None:
        """change: chance of each turn that somebody leaves, and that somebody joins.

        params: by lease. on_turn: called with the number of steps so far.
        """
        self.turns = 0
        self.answers = 0
        self.opened = 0
        self.errors = 0
        self._callers, self._sounds, self._frames = callers, sounds, frames
        self._end = time.monotonic() + seconds
        self._params, self._change, self._on_turn = params, change, on_turn
        self._random = random.Random(seed)
        self._live: dict[int, int] = {}
        """By lease, the index of its next frame."""
        self._opening: set[int] = set()
        self._closing = False

    @property
    def seconds_left(self) -> float:
        """Until the time is over."""
        return self._end - time.monotonic()

    def receive(self, *, wait_s: float | None) -> Sequence[Command] | None:
        """A frame of everybody, and who comes and goes. None: it is over."""
        if self._closing:
            return () if wait_s == 0 else None
        if self.turns >= self._frames or self.seconds_left <= 0:
            self._closing = True
            return [Close(lease) for lease in (*self._live, *self._opening)]
        commands: list[Command] = []
        if self._live and self._random.random() < self._change:
            leaver = self._random.choice(list(self._live))
            del self._live[leaver]
            commands.append(Close(leaver))
        there = len(self._live) + len(self._opening)
        if there < self._callers and (there == 0 or self._random.random() < 2 * self._change):
            self.opened += 1
            self._opening.add(self.opened)
            commands.append(Open(self.opened, self._params(self.opened)))
        while len(self._live) + len(self._opening) < self._callers and self.turns == 0:
            self.opened += 1
            self._opening.add(self.opened)
            commands.append(Open(self.opened, self._params(self.opened)))
        frames = [
            Frame(lease, 0, index, self._sounds[(lease + index) % len(self._sounds)])
            for lease, index in self._live.items()
        ]
        for lease in self._live:
            self._live[lease] += 1
        if frames:
            commands.append(Feed(frames, time.monotonic()))
        return commands

    def send(self, event: Event) -> None:
        """Takes what the engine says."""
        match event:
            case Outputs(outputs=outputs):
                self.turns += 1
                self.answers += sum(not output.error for output in outputs)
                self.errors += sum(bool(output.error) for output in outputs)
                self._on_turn(self.turns)
            case Live(lease=lease):
                self._opening.discard(lease.id)
                self._live[lease.id] = 0
            case Refused(lease=lease):
                self.errors += 1
                self._opening.discard(lease)
