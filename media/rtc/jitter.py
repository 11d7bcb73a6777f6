"""Packets of one RTP audio stream into media order, by their timestamps.

Nothing that is in order is held back: the model takes frames of 80 ms when they are complete, so
there is no playout clock to wait for. A hole is waited for until the frame it lies in should have
been complete, and as much longer as packets have lately been late; then the stream goes on without
it. Every tick of media time is given once, as a packet or as part of a gap, so nothing can add
delay for good.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from media.opus import CLOCK_RATE, PACKET_TICKS
from media.rtc.transit import Transit

SILENCE_AFTER_S: Final = 0.320
"""Patience with a caller who has sent nothing yet."""

RESYNC_AFTER_S: Final = 0.200
RESYNC_PACKETS: Final = 5
"""So many packets that are all too late, over so long a time, are on a clock of their own."""

MAX_JUMP_S: Final = 1.0
"""A timestamp farther ahead than this belongs to another timeline: holes are filled in real time,
so that an honest sender is never far ahead of them."""

MAX_CATCH_UP_FRAMES: Final = 25
"""Frames filled at once, at most, by a caller of `due` who was away."""

_REMEMBERED = 256  # sequence numbers, to tell duplicates from late packets


@dataclass(frozen=True, slots=True)
class AudioPacket:
    """One RTP packet of audio. `ticks` is its duration at the stream's clock rate."""

    ssrc: int
    sequence: int
    timestamp: int
    ticks: int
    payload: bytes


class GapCause(Enum):
    """Why there is no audio."""

    LOST = "lost"
    """Later packets came, and the numbers say that some are missing."""
    DTX = "dtx"
    """The sender left it out: the timestamps jump, the numbers don't."""
    ABSENT = "absent"
    """Nothing has come since, so it may be either."""


@dataclass(frozen=True, slots=True)
class Gap:
    """So many ticks without audio."""

    ticks: int
    cause: GapCause


class JitterBuffer:
    """Reorders, and decides when a hole is not waited for any longer. Pure: time is passed in."""

    def __init__(self, frame_ticks: int) -> None:
        """`frame_ticks`: how much audio the consumer takes at once, at 48 kHz."""
        self.received = 0
        """Packets taken, duplicates included."""
        self.duplicates = 0
        """Packets that had been here before."""
        self.late = 0
        """Packets whose place was filled when they came."""
        self.late_ticks = 0
        """Their duration."""
        self.resyncs = 0
        """Times the stream began another timeline."""
        self.lost_ticks = 0
        """Ticks without audio because packets did not come, or too late."""
        self.dtx_ticks = 0
        """Ticks without audio because the sender left it out."""
        self.absent_ticks = 0
        """Ticks without audio that no later packet has explained."""
        self.skipped_ticks = 0
        """Ticks given up without a gap, because nobody asked for them in time."""
        self.transit = Transit()
        self._frame = frame_ticks
        self._given = 0  # ticks since the beginning: frames are cut from these
        self._held: dict[int, AudioPacket] = {}  # by position
        self._next = 0  # the position, an unwrapped timestamp, that is given next
        self._ticks = PACKET_TICKS
        self._ssrc: int | None = None
        self._last = 0  # the number of the packet given last
        self._unexplained = 0  # ticks given as absent until the next packet says why
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._late_since: float | None = None
        self._late_run = 0  # packets since then, none of them in time
        self._silent_from: float | None = None  # before the first packet only

    @property
    def next_deadline(self) -> float | None:
        """When `due` has something; None while there is nothing to wait for."""
        if self._silent_from is not None:
            return self._silent_from
        if self._ssrc is None:
            return None
        last_packet = self._next + max(self._missing() - self._ticks, 0)
        return self.transit.base + last_packet / CLOCK_RATE + self.transit.target

    def start(self, now: float) -> None:
        """Begins without a packet, for callers who may stay mute."""
        if self._ssrc is None and self._silent_from is None:
            self._silent_from = now + SILENCE_AFTER_S

    def push(self, packet: AudioPacket, now: float) -> list[AudioPacket | Gap]:
        """Takes a packet; gives what it puts in order."""
        self.received += 1
        out: list[AudioPacket | Gap] = []
        if packet.ssrc != self._ssrc:
            out = self._give_held()
            self._begin(packet)
        position = self._next + _signed(packet.timestamp - self._next, 32)
        if position - self._next > MAX_JUMP_S * CLOCK_RATE:
            out = self._give_held()
            self._begin(packet)
            self.resyncs += 1
            position = self._next
        elif position in self._held or (position < self._next and packet.sequence in self._recent):
            self.duplicates += 1
            return out
        self.transit.observe(now - position / CLOCK_RATE, now)
        if position >= self._next:
            self._late_since, self._late_run = None, 0
        elif self._has_its_own_clock(now):
            out += self._give_held()
            self._begin(packet)
            self.resyncs += 1
            position = self._next
            self.transit.observe(now - position / CLOCK_RATE, now)
        else:
            self._too_late(packet)
            return out
        self._held[position] = packet
        return out + self._in_order()

    def due(self, now: float) -> list[AudioPacket | Gap]:
        """Gives up the holes whose time has come."""
        out: list[AudioPacket | Gap] = []
        frames = 0
        while (deadline := self.next_deadline) is not None and deadline <= now:
            if frames == MAX_CATCH_UP_FRAMES:
                self._skip(now - deadline)
                break
            out += self._complete_frame()
            frames += 1
        return out

    def _begin(self, packet: AudioPacket) -> None:
        self.transit.reset()
        self._held.clear()
        self._recent.clear()
        self._late_since = self._silent_from = None
        self._late_run = 0
        self._ssrc = packet.ssrc
        self._next = packet.timestamp
        self._unexplained = 0
        self._last = packet.sequence - 1 & 0xFFFF

    def _has_its_own_clock(self, now: float) -> bool:
        # A burst after a pause of the network comes in no time, and its end is punctual. What is
        # too late for longer has moved: a sender that paused its clock, or a longer way.
        if self._late_since is None:
            self._late_since = now
        self._late_run += 1
        return self._late_run >= RESYNC_PACKETS and now - self._late_since >= RESYNC_AFTER_S

    def _in_order(self) -> list[AudioPacket | Gap]:
        """What can be given without waiting."""
        out: list[AudioPacket | Gap] = []
        while self._held:
            packet = self._held.pop(self._next, None)
            if packet is None:
                first = min(self._held)
                if first < self._next:  # it overlaps what has been given
                    self._too_late(self._held.pop(first))
                    continue
                if self._held[first].sequence != self._last + 1 & 0xFFFF:
                    break
                out.append(self._gap(first - self._next, GapCause.DTX))
                continue
            self._explain(packet.sequence)
            self._last = packet.sequence
            self._recent.append(packet.sequence)
            self._ticks = packet.ticks
            self._advance(packet.ticks)
            out.append(packet)
        return out

    def _too_late(self, packet: AudioPacket) -> None:
        self.late += 1
        self.late_ticks += packet.ticks

    def _complete_frame(self) -> list[AudioPacket | Gap]:
        """Gives whole frames, holes and all: at least the one that is due."""
        if self._silent_from is not None:
            self._silent_from += self._frame / CLOCK_RATE
            return [self._gap(self._frame, GapCause.ABSENT)]
        out: list[AudioPacket | Gap] = []
        end = self._given + self._missing()
        while self._given < end:
            # In whole packets, so that what comes next still fits.
            hole = -(-(end - self._given) // self._ticks) * self._ticks
            cause = GapCause.ABSENT
            if self._held:
                hole, cause = min(hole, min(self._held) - self._next), GapCause.LOST
            out.append(self._gap(hole, cause))
            out += self._in_order()
        return out

    def _give_held(self) -> list[AudioPacket | Gap]:
        """Everything that is held, with the holes before it: the timeline ends."""
        out: list[AudioPacket | Gap] = []
        while self._held:
            first = min(self._held)
            if first > self._next:
                out.append(self._gap(first - self._next, GapCause.LOST))
            out += self._in_order()
        return out

    def _missing(self) -> int:
        """Ticks until the frame that has begun is complete."""
        return self._frame - self._given % self._frame

    def _gap(self, ticks: int, cause: GapCause) -> Gap:
        match cause:
            case GapCause.LOST:
                self.lost_ticks += ticks
            case GapCause.DTX:
                self.dtx_ticks += ticks
            case GapCause.ABSENT:
                self.absent_ticks += ticks
                if self._ssrc is not None:
                    self._unexplained += ticks
        self._advance(ticks)
        return Gap(ticks, cause)

    def _explain(self, sequence: int) -> None:
        """The packet after an absence says whether anything was lost in it."""
        self.absent_ticks -= self._unexplained
        if sequence == self._last + 1 & 0xFFFF:
            self.dtx_ticks += self._unexplained
        else:
            self.lost_ticks += self._unexplained
        self._unexplained = 0

    def _advance(self, ticks: int) -> None:
        self._given += ticks
        self._next += ticks

    def _skip(self, seconds: float) -> None:
        frames = int(seconds * CLOCK_RATE) // self._frame + 1
        self.skipped_ticks += frames * self._frame
        if self._silent_from is not None:
            self._silent_from += frames * self._frame / CLOCK_RATE
        else:
            self._next += frames * self._frame


def _signed(difference: int, bits: int) -> int:
    """The difference of two wrapping counters, the short way round."""
    half = 1 << (bits - 1)
    return (difference + half) % (1 << bits) - half
