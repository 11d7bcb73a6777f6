"""Callers over WebRTC that cost little: connected by aiortc, then packets made beforehand.

A caller sends silence with a burst of noise in one packet now and then. Those who listen decode
what comes back as it comes, in no jitter buffer, and note when it is loud; the others only count.
All are driven by one loop, each at its own place in the 20 ms of a packet.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from media.clock import SystemClock
from media.opus import PACKET_SAMPLES, PACKET_TICKS, OpusDecoder, OpusEncoder
from media.rtc.aiortc_internals import life, packets

PACKET_S: Final = 0.02
BURST_EVERY: Final = 23
"""Packets: no multiple of a frame's four, so that every place in it is measured."""
_LOUD: Final = 0.05  # RMS
_SEEDS: Final = 8


def _payloads(seed: int) -> list[bytes]:
    """A burst and the silence that follows, encoded as one stream."""
    encoder = OpusEncoder(fec=False)
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, PACKET_SAMPLES)
    silence = np.zeros(PACKET_SAMPLES, np.float32)
    pieces = [noise.astype(np.float32)] + [silence] * (BURST_EVERY - 1)
    return [bytes(encoder.encode(piece, 0)) for piece in pieces]


_ENCODED: Final = [_payloads(seed) for seed in range(_SEEDS)]


@dataclass
class Counts:
    """Of one caller."""

    sent: int = 0
    returned: int = 0
    bursts: list[float] = field(default_factory=list)
    """When each was sent."""
    returns: list[float] = field(default_factory=list)
    """When each came back."""

    def latencies_s(self) -> list[float]:
        """From each burst's sending to its return."""
        found = []
        for sent in self.bursts:
            back = [time for time in self.returns if sent < time < sent + BURST_EVERY * PACKET_S]
            if back:
                found.append(back[0] - sent)
        return found


class Caller:
    """One of them."""

    def __init__(self, number: int, *, listens: bool) -> None:
        self.counts = Counts()
        self.connect_s = 0.0
        self._number = number
        self._clock = SystemClock()
        self._payloads = _ENCODED[number % _SEEDS]
        self._packets = 0
        self._loud_until = 0.0
        self._decoder = OpusDecoder() if listens else None
        self._track = packets.Unsent()
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._handshake = life.Handshake(self._pc)
        self._sender: packets.RtpSender | None = None

    async def connect(self, answer_to: Callable[[str], Awaitable[str]]) -> None:
        """Offers, and returns when the connection stands."""
        pc = self._pc
        began = self._clock.now()
        pc.addTrack(self._track)
        connected = asyncio.Event()

        def on_state() -> None:
            if pc.connectionState == "connected":
                connected.set()

        pc.on("connectionstatechange", on_state)
        await pc.setLocalDescription(await pc.createOffer())
        answer = await answer_to(pc.localDescription.sdp)
        packets.take_packets(pc.getReceivers()[0], self._on_packet)
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await connected.wait()
        await self._track.begun.wait()
        self._sender = packets.RtpSender(pc.getTransceivers()[0])
        self.connect_s = self._clock.now() - began

    def send(self) -> None:
        """Sends the next packet."""
        assert self._sender is not None
        place = (self._packets + 5 * self._number) % BURST_EVERY
        if place == 0:
            self.counts.bursts.append(self._clock.now())
        self._sender.send(self._payloads[place], self._packets * PACKET_TICKS)
        self._packets += 1
        self.counts.sent += 1

    async def close(self) -> None:
        """Hangs up."""
        await self._pc.close()
        await self._handshake.settle()

    def _on_packet(self, packet: packets.Packet) -> None:
        self.counts.returned += 1
        if self._decoder is None:
            return
        now = self._clock.now()
        pcm = self._decoder.decode(packet.payload)
        if float(np.sqrt(np.mean(pcm * pcm))) >= _LOUD:
            if now > self._loud_until:  # a burst lies in two packets: codecs look ahead
                self.counts.returns.append(now)
            self._loud_until = now + 5 * PACKET_S


async def talk(callers: list[Caller]) -> None:
    """Has them send for ever, evenly spread, on absolute deadlines."""
    clock = SystemClock()
    start = clock.now()
    for turn in itertools.count():
        for place, caller in enumerate(callers):
            await clock.sleep_until(start + (turn + place / len(callers)) * PACKET_S)
            caller.send()
