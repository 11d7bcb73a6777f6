"""How many sessions an engine carries, worked out from how long its steps are.

The frames of N callers come at random phases, one of each in a frame time F. A turn of the engine
is a step and at most one piece of other work, such as a part of a prompt; the rows of a step are
those whose frames came during the turn before it. A turn of B rows takes T(B) = S(B) + P seconds,
so B settles where B = N * T(B) / F. With T(N) above F the engine falls behind. A frame waits for
the rest of the turn in which it came, and for its own step: T(B) + S(B) at most. A caller has one
frame in a frame time, so of few callers those who are in the one step aren't in the other, and the
rows of the two are N at most.

By chance more frames come in one turn than in another: their number is binomial, each caller's
with a probability of T / F. So B is taken two standard deviations above its mean.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import msgspec

PLANNED_SHARE: Final = 0.8
"""Of a frame's time: as late as frames may be with as many sessions as are planned for."""
MAX_SLOTS: Final = 1024
"""More are never planned for, whatever the device allows."""

_DEVIATIONS: Final = 2.0


class StepCurve:
    """The seconds of a step by its rows: never falling, linear between the points that were
    measured, and behind the last one as steep as before it.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points`: seconds by rows. Raises ValueError unless there are some, of a row or more."""
        if not points or min(points) < 1 or not min(points.values()) > 0:
            raise ValueError(f"no step times by rows: {dict(points)}")
        self.rows = sorted(points)
        self._seconds: list[float] = []
        for rows in self.rows:
            self._seconds.append(max(points[rows], *self._seconds[-1:], 0.0))
        if len(self.rows) == 1:
            # All that is known: two steps do what one of twice the rows would have to.
            self.rows.append(2 * self.rows[0])
            self._seconds.append(2 * self._seconds[0])

    @property
    def points(self) -> dict[int, float]:
        """Seconds by rows, as they were measured, but never falling."""
        return dict(zip(self.rows, self._seconds, strict=True))

    def __call__(self, rows: float) -> float:
        """Seconds of a step; below the first point as there."""
        if rows <= self.rows[0]:
            return self._seconds[0]
        place = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        rise = self._seconds[place] - self._seconds[place - 1]
        slope = rise / (self.rows[place] - self.rows[place - 1])
        return self._seconds[place] + slope * (rows - self.rows[place])


class Load(msgspec.Struct, frozen=True):
    """Where an engine settles."""

    rows: float
    """Of a step; two deviations above the mean."""
    step_s: float
    latency_s: float
    """From a frame's arrival to the end of its step, at most."""


def load_of(
    curve: StepCurve,
    sessions: int,
    frame_s: float,
    *,
    piece_s: float = 0.0,
    slowdown: float = 1.0,
) -> Load | None:
    """Where it settles with `sessions` callers, or None if it falls behind.

    frame_s: F above. piece_s: P. slowdown: by which both take longer than that.
    """

    def turn_s(rows: float) -> float:
        return slowdown * (curve(rows) + piece_s)

    def surplus(rows: float) -> float:
        """Rows whose frames come in a turn of so many, less these."""
        return sessions * turn_s(rows) / frame_s - rows

    if turn_s(sessions) > frame_s:
        return None
    mean = low = 1.0
    if surplus(1.0) > 0:
        for high in (*(rows for rows in curve.rows if 1 < rows < sessions), sessions):
            if surplus(high) <= 0:
                mean = low + (high - low) * surplus(low) / (surplus(low) - surplus(high))
                break
            low = high
    share = turn_s(mean) / frame_s
    mean = sessions * share
    rows = mean + _DEVIATIONS * math.sqrt(mean * max(0.0, 1 - share))
    rows = min(float(sessions), max(1.0, rows))
    step_s = slowdown * curve(rows)
    latency_s = slowdown * piece_s + step_s  # of a frame that comes after a pause
    # Of one that comes in a step: its own has the other callers at most. The longest pair of steps
    # is at a corner of the sum of both.
    least, most = max(1.0, sessions - rows), min(rows, sessions - 1.0)
    corners = (*curve.rows, *(sessions - rows for rows in curve.rows))
    for before in (least, most, *(corner for corner in corners if least < corner < most)):
        if 1 <= before <= most:
            own_s = slowdown * curve(min(rows, sessions - before))
            latency_s = max(latency_s, turn_s(before) + own_s)
    return Load(rows, step_s, latency_s)


class Plan(msgspec.Struct, frozen=True):
    """So many sessions, and why."""

    slots: int
    reason: str


def plan_slots(
    curve: StepCurve,
    *,
    frame_s: float,
    most: int,
    limit: str = "memory allows",
    piece_s: float = 0.0,
    slowdown: float = 1.0,
    share: float = PLANNED_SHARE,
) -> Plan:
    """As many sessions as `most`, which the reason calls `limit`, and whose frames are never later
    than `share` of `frame_s`; one at least. `curve`: of rows that remember all they can. The
    others: see `load_of`.
    """
    longest_s = share * frame_s

    def load(sessions: int) -> Load | None:
        return load_of(curve, sessions, frame_s, piece_s=piece_s, slowdown=slowdown)

    def is_late(sessions: int) -> bool:
        found = load(sessions)
        return found is None or found.latency_s > longest_s

    timely = bisect_left(range(1, MAX_SLOTS + 1), True, key=is_late)
    slots = max(1, min(timely, most))
    noun = "session" if slots == 1 else "sessions"
    bound = f"{MAX_SLOTS} or more" if timely == MAX_SLOTS else str(timely)
    reason = f"{slots} {noun}: {limit} {most}, step time {bound}"
    found = load(slots)
    if found is None or found.latency_s > longest_s:
        step_s = slowdown * curve(1)
        fate = "it will fall behind" if step_s > frame_s else "its frames may be late"
        return Plan(slots, f"{reason} (a step takes {_ms(step_s)} with 1 row): {fate}")
    rows = math.ceil(found.rows)
    size = "1 row" if rows == 1 else f"up to {rows} rows"
    return Plan(
        slots,
        f"{reason} (steps of {_ms(found.step_s)} with {size}, frames in "
        f"{_ms(found.latency_s)} of {_ms(longest_s)} at most)",
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
