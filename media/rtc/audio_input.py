"""A caller's RTP audio into the model's frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from media.formats import BadAudio, Pcm
from media.framing import Framer
from media.input_clock import InputClock
from media.opus import CLOCK_RATE, OpusDecoder, packet_ticks
from media.rtc.concealment import Concealer
from media.rtc.jitter import AudioPacket, Gap, JitterBuffer

SAMPLE_RATE: Final = 24000
FRAME_SIZE: Final = 1920
FRAME_S: Final = FRAME_SIZE / SAMPLE_RATE

MAX_BACKLOG_FRAMES: Final = 6
"""How far the audio taken may run ahead of real time; of more, the oldest is dropped."""

_FRAME_TICKS = FRAME_SIZE * CLOCK_RATE // SAMPLE_RATE

# The resampler holds back 16 of the first samples. These zeros fill it, so that from then on each
# frame comes out whole and never waits for the packet after it.
_PRIMING = 32


@dataclass(frozen=True, slots=True)
class InputStats:
    """What became of a caller's audio. Samples are at 24 kHz."""

    packets: int
    """RTP packets that came, duplicates included."""
    duplicate_packets: int
    late_packets: int
    """Packets that came when their place had been filled."""
    late_samples: int
    """Their duration."""
    bad_packets: int
    """Packets that are no Opus."""
    lost_samples: int
    """Concealed because packets did not come in time, or were bad."""
    silence_samples: int
    """Filled because the sender sent nothing."""
    dropped_samples: int
    """Taken but not given, because the sender ran ahead of real time."""
    skipped_samples: int
    """Never given, because this process was away."""
    resyncs: int
    """Times the sender began another timeline."""
    frames: int
    """Frames given."""
    jitter_s: float
    """The slowest packet of the last 2 s against the quickest of the last 4 s, in seconds."""
    target_s: float
    """How long past its time a packet is waited for at present, in seconds."""


class AudioInput:
    """Reorders, decodes, conceals, resamples and cuts. Pure: time is passed in."""

    def __init__(self) -> None:
        self._jitter = JitterBuffer(_FRAME_TICKS)
        self._decoder = OpusDecoder()
        self._concealer = Concealer()
        self._framer = Framer(_FRAME_TICKS)
        self._clock = InputClock(
            FRAME_SIZE,
            SAMPLE_RATE,
            server_clocked=True,
            silence_after_s=math.inf,  # the jitter buffer knows better when to fill
            max_backlog_frames=MAX_BACKLOG_FRAMES,
        )
        self._bad = 0
        self._bad_ticks = 0
        self._primed = False

    @property
    def next_deadline(self) -> float | None:
        """When `due` may have a frame; None before `start` and the first packet."""
        return self._jitter.next_deadline

    def start(self, now: float) -> None:
        """Begins without a packet, for callers who may stay mute."""
        self._jitter.start(now)

    def push(
        self, ssrc: int, sequence: int, timestamp: int, payload: bytes, now: float
    ) -> list[Pcm]:
        """Takes an RTP packet of Opus; gives the frames [1920] that it completes."""
        try:
            ticks = packet_ticks(payload)
        except BadAudio:
            self._bad += 1
            return []
        packet = AudioPacket(ssrc, sequence, timestamp, ticks, payload)
        return self._render(self._jitter.push(packet, now), now)

    def due(self, now: float) -> list[Pcm]:
        """Frames [1920] that are given up waiting for, their holes concealed."""
        return self._render(self._jitter.due(now), now)

    def stats(self) -> InputStats:
        """What has happened so far."""
        jitter = self._jitter
        ticks_per_sample = CLOCK_RATE // SAMPLE_RATE
        return InputStats(
            packets=jitter.received,
            duplicate_packets=jitter.duplicates,
            late_packets=jitter.late,
            late_samples=jitter.late_ticks // ticks_per_sample,
            bad_packets=self._bad,
            lost_samples=(jitter.lost_ticks + self._bad_ticks) // ticks_per_sample,
            silence_samples=(jitter.dtx_ticks + jitter.absent_ticks) // ticks_per_sample,
            dropped_samples=self._clock.dropped * FRAME_SIZE,
            skipped_samples=jitter.skipped_ticks // ticks_per_sample,
            resyncs=jitter.resyncs,
            frames=self._clock.frames_out,
            jitter_s=jitter.transit.spread,
            target_s=jitter.transit.target,
        )

    def _render(self, stream: list[AudioPacket | Gap], now: float) -> list[Pcm]:
        frames: list[Pcm] = []
        if stream and not self._primed:
            self._primed = True
            self._clock.push_pcm(np.zeros(_PRIMING, np.float32), CLOCK_RATE, now)
        for item in stream:
            pcm = self._concealer.conceal(item.ticks) if isinstance(item, Gap) else self._pcm(item)
            for whole in self._framer.push(pcm):  # one call of the resampler for each frame
                frames += self._clock.push_pcm(whole, CLOCK_RATE, now)
        return frames

    def _pcm(self, packet: AudioPacket) -> Pcm:
        try:
            pcm = self._decoder.decode(packet.payload)
        except BadAudio:
            pcm = None
        if pcm is None or len(pcm) != packet.ticks:
            self._bad += 1
            self._bad_ticks += packet.ticks
            return self._concealer.conceal(packet.ticks)
        return self._concealer.receive(pcm)
