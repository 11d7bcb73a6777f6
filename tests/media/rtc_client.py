"""A caller on stock aiortc, in this process: for tests of the peer that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import av
import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtcpRrPacket, RtpPacket

from media.formats import Pcm
from media.opus import PACKET_SAMPLES, PACKET_TICKS, OpusEncoder
from media.rtc.aiortc_internals.life import Handshake

RATE = 24000


class Microphone(MediaStreamTrack):
    """Sends samples at 24 kHz in packets of 20 ms, on absolute deadlines; silence after them."""

    kind = "audio"

    def __init__(self, pcm: Pcm) -> None:
        super().__init__()
        self._pcm = pcm
        self._encoder = OpusEncoder(fec=False)
        self._sent = 0
        self._start: float | None = None

    async def recv(self) -> av.Packet:
        if self.readyState != "live":
            raise MediaStreamError
        now = asyncio.get_running_loop().time()
        if self._start is None:
            self._start = now
        await asyncio.sleep(max(0.0, self._start + self._sent * 0.02 - now))
        piece = self._pcm[self._sent * PACKET_SAMPLES : (self._sent + 1) * PACKET_SAMPLES]
        piece = np.pad(piece, (0, PACKET_SAMPLES - len(piece)))
        packet = self._encoder.encode(piece, self._sent * PACKET_TICKS)
        self._sent += 1
        return packet


class Client:
    """Offers audio and the events channel; keeps what it hears as mono samples at 48 kHz."""

    def __init__(
        self,
        pcm: Pcm | None = None,
        *,
        video: MediaStreamTrack | None = None,
        ice_servers: Sequence[RTCIceServer] = (),
    ) -> None:
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=list(ice_servers)))
        self._handshake = Handshake(self.pc)  # stock aiortc would leave tasks behind
        self.heard: list[Pcm] = []
        self.messages: list[str] = []
        self.opened = asyncio.Event()
        self.received = asyncio.Event()
        self.channel: RTCDataChannel | None = None
        self.listening: asyncio.Task[None] | None = None
        self._pcm = pcm if pcm is not None else np.zeros(0, np.float32)
        self._video = video

    async def offer(self, *, channel: bool = True, audio: bool = True) -> str:
        """The SDP, candidates included."""
        if audio:
            self.pc.addTrack(Microphone(self._pcm))
        if self._video:
            self.pc.addTrack(self._video)
        if channel:
            self.channel = self.pc.createDataChannel("oai-events")
            self.channel.on("open", self.opened.set)
            self.channel.on("message", self._on_message)
        self.pc.on("track", self._on_track)
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return self.pc.localDescription.sdp

    async def answered(self, sdp: str) -> None:
        await self.pc.setRemoteDescription(RTCSessionDescription(sdp, "answer"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the connection to be in a state."""
        reached = asyncio.Event()

        def check() -> None:
            if condition():
                reached.set()

        self.pc.on("connectionstatechange", check)
        check()
        async with asyncio.timeout(15):
            await reached.wait()

    async def until_received(self, messages: int) -> None:
        async with asyncio.timeout(15):
            while len(self.messages) < messages:
                self.received.clear()
                await self.received.wait()

    async def connected(self) -> None:
        await self.until(lambda: self.pc.connectionState == "connected")

    async def pretend(self, sources: int) -> None:
        """Sends a packet of RTP and one of RTCP from each of so many sources."""
        transport = self.pc.getSenders()[0].transport
        payload_type = self.pc.getTransceivers()[0]._codecs[0].payloadType
        for k in range(sources):
            packet = RtpPacket(payload_type, sequence_number=k, ssrc=k + 1, payload=b"\xf8\xff\xfe")
            await transport._send_rtp(packet.serialize())
            await transport._send_rtp(bytes(RtcpRrPacket(ssrc=k + 1000)))
            await asyncio.sleep(0)

    def vanish(self) -> None:
        """Ends without a word: the sockets go, nothing is sent."""
        for transport in {t.receiver.transport.transport for t in self.pc.getTransceivers()}:
            for protocol in transport._connection._protocols:
                protocol.transport.abort()

    async def close(self) -> None:
        await self.pc.close()
        await self._handshake.settle()
        if self.listening:  # the track of a receiver that never began never ends
            self.listening.cancel()
            await asyncio.wait([self.listening])

    def _on_message(self, data: str) -> None:
        self.messages.append(data)
        self.received.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self.listening = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            stereo = frame.to_ndarray().reshape(-1, 2)
            self.heard.append(stereo.mean(axis=1).astype(np.float32) / 32768)


def speech(seconds: float, seed: int = 0) -> Pcm:
    """Something like a voice: a gliding tone with syllables, at 24 kHz."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 140 + 40 * np.sin(2 * np.pi * 0.7 * t) + 10 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 12))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t), 0, 1) ** 0.5
    noise = 0.01 * rng.standard_normal(len(t))
    return (0.2 * voice * syllables + noise * syllables).astype(np.float32)
