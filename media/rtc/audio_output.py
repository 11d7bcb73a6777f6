"""The model's audio to a caller: paced, encoded once, handed to the RTP sender as packets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import av

from media.clock import Clock
from media.formats import Pcm
from media.opus import CODED_RATE, PACKET_SAMPLES, PACKET_TICKS, OpusEncoder
from media.output_clock import OutputClock
from media.rtc.alarm import Alarm

MAX_BACKLOG_S: Final = 0.480
"""Audio that may wait to be sent; of more, the oldest is dropped."""

GRACE_S: Final = 0.015
"""How late a packet may be sent before silence is sent in its place: what any receiver absorbs."""

RECOVER_AFTER_S: Final = 0.640
"""Delay that no frame has needed for so long is taken back."""

_PACKET_S = PACKET_SAMPLES / CODED_RATE


@dataclass(frozen=True, slots=True)
class OutputStats:
    """What became of the audio for a caller. Samples are at 24 kHz."""

    packets: int
    """RTP packets sent, those of silence included."""
    silence_samples: int
    """Sent in place of audio that was not there in time."""
    dropped_samples: int
    """Over the backlog: the caller of `send` ran ahead of real time."""
    recovered_samples: int
    """Dropped to take back delay."""
    flushed_samples: int
    """Taken back by `flush`."""
    skipped_samples: int
    """Media time never sent, because this process was away."""
    backlog_s: float
    """Audio that waits, in seconds."""


class AudioOutput:
    """Packets on absolute deadlines; silence when there is nothing to say."""

    def __init__(self, clock: Clock, *, fec: bool) -> None:
        self._live = True
        self._clock = clock
        self._pacer = OutputClock(
            PACKET_SAMPLES,
            CODED_RATE,
            max_backlog_frames=round(MAX_BACKLOG_S / _PACKET_S),
            grace_s=GRACE_S,
            recover_after_s=RECOVER_AFTER_S,
        )
        self._encoder = OpusEncoder(fec=fec)
        self._alarm = Alarm(clock)
        self._ready: deque[av.Packet[av.AudioStream]] = deque()
        self._packets = 0

    def send(self, pcm: Pcm) -> None:
        """Takes samples [n] at 24 kHz, n a multiple of 480 (20 ms).

        Raises ValueError for another n; what had been taken stays.
        """
        if len(pcm) % PACKET_SAMPLES:
            raise ValueError(f"{len(pcm)} samples are no multiple of {PACKET_SAMPLES}")
        now = self._clock.now()
        for start in range(0, len(pcm), PACKET_SAMPLES):
            self._pacer.put(pcm[start : start + PACKET_SAMPLES], now)
        self._alarm.ring()

    def flush(self) -> float:
        """Takes back what waits, for a barge-in; gives how much that was, in seconds."""
        return self._pacer.flush() * _PACKET_S

    def stats(self) -> OutputStats:
        """What has happened so far."""
        pacer = self._pacer
        return OutputStats(
            packets=self._packets,
            silence_samples=pacer.concealed * PACKET_SAMPLES,
            dropped_samples=pacer.dropped * PACKET_SAMPLES,
            recovered_samples=pacer.recovered * PACKET_SAMPLES,
            flushed_samples=pacer.flushed * PACKET_SAMPLES,
            skipped_samples=pacer.skipped * PACKET_SAMPLES,
            backlog_s=pacer.backlog * _PACKET_S,
        )

    async def recv(self) -> av.Packet[av.AudioStream] | None:
        """The next packet, when it is due; None after `stop`."""
        self._pacer.start(self._clock.now())
        while not self._ready:
            if not self._live:
                return None
            if not self._encode_due():
                await self._until_due()
        self._packets += 1
        return self._ready.popleft()

    def stop(self) -> None:
        """Ends it, and a `recv` that waits."""
        self._live = False
        self._alarm.ring()

    async def _until_due(self) -> None:
        deadline = self._pacer.next_deadline
        if self._pacer.backlog and deadline is not None:  # nothing could make it earlier
            await self._clock.sleep_until(deadline)
        else:
            await self._alarm.wait(deadline)

    def _encode_due(self) -> bool:
        pacer = self._pacer
        pieces = pacer.due(self._clock.now())
        # Media time that was skipped is a hole in the timestamps, so that the rest is in its place.
        timestamp = (pacer.frames_out + pacer.skipped - len(pieces)) * PACKET_TICKS
        for index, piece in enumerate(pieces):
            self._ready.append(self._encoder.encode(piece, timestamp + index * PACKET_TICKS))
        return bool(pieces)
