"""Opus packets: their duration, a decoder and an encoder (libopus through PyAV).

An RTP clock of Opus always counts 48 kHz, whatever rate is coded (RFC 7587, section 4.1).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from typing import Final

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext

from media.formats import BadAudio, Pcm

CLOCK_RATE: Final = 48000
"""Hz of timestamps and of decoded samples."""

CODED_RATE: Final = 24000
"""Hz of what is encoded: the models' rate, so nothing is resampled on the way out."""

PACKET_SAMPLES: Final = CODED_RATE // 50
"""Samples of one encoded packet (20 ms) at `CODED_RATE`."""

PACKET_TICKS: Final = CLOCK_RATE // 50
"""The same 20 ms on the RTP clock."""

_MAX_TICKS = CLOCK_RATE * 120 // 1000  # RFC 6716, section 3.2.5
_SILK_TICKS = (480, 960, 1920, 2880)
_HYBRID_TICKS = (480, 960)
_CELT_TICKS = (120, 240, 480, 960)

_TO_FLOAT = np.float32(1 / 32768)
_TIME_BASE = Fraction(1, CLOCK_RATE)


def packet_ticks(payload: bytes) -> int:
    """Duration of a packet in samples at 48 kHz, from its first bytes (RFC 6716, section 3.1).

    Raises BadAudio for bytes that can't be an Opus packet.
    """
    if not payload:
        raise BadAudio("an Opus packet has at least one byte")
    config, code = payload[0] >> 3, payload[0] & 3
    if config < 12:
        frame = _SILK_TICKS[config & 3]
    elif config < 16:
        frame = _HYBRID_TICKS[config & 1]
    else:
        frame = _CELT_TICKS[config & 3]
    if code == 3:
        if len(payload) < 2:
            raise BadAudio("an Opus packet of code 3 has at least two bytes")
        count = payload[1] & 0x3F
    else:
        count = 1 if code == 0 else 2
    if not 0 < frame * count <= _MAX_TICKS:
        raise BadAudio(f"an Opus packet of {frame * count} samples is longer than 120 ms or empty")
    return frame * count


class OpusDecoder:
    """Packets of one stream, in order, to mono samples at 48 kHz."""

    def __init__(self) -> None:
        codec = av.CodecContext.create("libopus", "r")
        assert isinstance(codec, AudioCodecContext)
        codec.thread_count = 1
        codec.layout = "mono"  # libopus itself mixes a stereo stream down
        codec.sample_rate = CLOCK_RATE
        self._codec = codec

    def decode(self, payload: bytes) -> Pcm:
        """Samples [n] of one packet. Raises BadAudio; the next packet may be decoded then."""
        try:
            frames = self._codec.decode(av.Packet(payload))
        except av.FFmpegError as error:
            raise BadAudio(f"an Opus packet of {len(payload)} bytes: {error.strerror}") from error
        chunks = [np.frombuffer(memoryview(f.planes[0]), "<i2", f.samples) for f in frames]
        whole = chunks[0] if len(chunks) == 1 else np.concatenate(chunks) if chunks else _NOTHING
        return whole * _TO_FLOAT


class OpusEncoder:
    """Pieces of 20 ms at 24 kHz, mono, to packets, one each."""

    def __init__(self, *, fec: bool) -> None:
        """With `fec`, each packet also carries its predecessor, coarsely, for lossy ways.

        Forward error correction exists in libopus's speech mode only; without it, its transform
        mode gives the same quality at half the CPU.
        """
        codec = av.CodecContext.create("libopus", "w")
        assert isinstance(codec, AudioCodecContext)
        codec.thread_count = 1
        codec.sample_rate = CODED_RATE
        codec.layout = "mono"
        codec.format = "flt"
        codec.time_base = Fraction(1, CODED_RATE)
        # At complexity 1 and these rates both modes code the whole band; at half the CPU of 10.
        codec.bit_rate = 40000 if fec else 48000
        codec.options = {
            "application": "voip" if fec else "audio",
            "frame_duration": "20",
            "fec": str(int(fec)),
            "packet_loss": "10" if fec else "0",
            "compression_level": "1",
        }
        self._codec = codec

    def encode(self, pcm: Pcm, timestamp: int) -> av.Packet[av.AudioStream]:
        """One packet of samples [480], stamped with `timestamp` on the 48 kHz clock."""
        if len(pcm) != PACKET_SAMPLES:
            raise ValueError(f"{len(pcm)} samples, not {PACKET_SAMPLES}")
        frame = av.AudioFrame("flt", "mono", PACKET_SAMPLES)
        frame.sample_rate = CODED_RATE
        frame.planes[0].update((pcm + _DITHER).astype(np.float32, copy=False).tobytes())
        with nullcontext() if self._codec.is_open else _one_processor():
            (packet,) = self._codec.encode(frame)
        packet.pts = packet.dts = timestamp
        packet.time_base = _TIME_BASE
        return packet


@contextmanager
def _one_processor() -> Iterator[None]:
    """Confines this thread to one of its processors, where the system can.

    PyAV's encoder cuts frames in a filter graph that it makes with the first of them, and whose
    threads it leaves to FFmpeg: one more than there are processors for the calling thread, up to
    16 for each stream; for one processor, none.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):  # a sandbox may forbid it: then there are threads
        os.sched_setaffinity(0, {random.choice(tuple(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)


_NOTHING = np.zeros(0, np.int16)
_DITHER = np.random.default_rng(0).uniform(-3e-7, 3e-7, PACKET_SAMPLES).astype(np.float32)
"""Inaudible (-130 dB). Digital silence would drive libopus's filters into numbers too small for a
processor to be quick with: a packet of it takes four times as long to encode as one of speech.
"""
