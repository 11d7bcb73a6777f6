"""A seeded UDP relay that loses, delays, reorders and doubles datagrams: a bad network in a test.

The two sides only ever learn the relay's addresses: give the server an offer through
`hide_candidates`, and the client its answer through `Relay.through`.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from typing import cast

Address = tuple[str, int]


@dataclass
class Weather:
    """How bad the network is. May be changed while it is in use."""

    loss: float = 0.0
    """Share of datagrams that are lost."""
    jitter_s: float = 0.0
    """Each datagram is delayed by up to this much, and so overtaken by others."""
    doubled: float = 0.0
    """Share of datagrams that come twice."""
    mtu: int = 1500
    """IPv4 packets larger than this are lost."""


@dataclass
class Counts:
    """What became of the datagrams, both ways together."""

    passed: int = 0
    lost: int = 0
    doubled: int = 0
    too_large: int = 0
    media_lost: int = 0
    """Of those lost, the RTP packets of the client."""


def hide_candidates(sdp: str) -> str:
    """The description without addresses, so that the other side waits to be called."""
    return re.sub(r"a=(candidate:|end-of-candidates).*\r\n", "", sdp)


class Relay:
    """Between one client and one server; closed by `close`."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.counts = Counts()
        self._random = random.Random(seed)
        self._open_transports: list[asyncio.DatagramTransport] = []
        self._near: asyncio.DatagramTransport
        self._far: asyncio.DatagramTransport
        self._client: Address | None = None
        self._server: Address

    async def through(self, answer: str) -> str:
        """Opens the relay to the server of this answer; gives the answer for the client."""
        found = re.search(r"a=candidate:\S+ 1 udp \d+ ([\d.]+) (\d+) typ host", answer)
        assert found, answer
        self._server = (found[1], int(found[2]))
        self._near = await self._open(self._from_client)
        self._far = await self._open(self._from_server)
        host, port = self._near.get_extra_info("sockname")
        own = f"a=candidate:1 1 udp 2130706431 {host} {port} typ host\r\n"
        sections = hide_candidates(answer).split("m=")
        return "m=".join([sections[0], *(section + own for section in sections[1:])])

    async def close(self) -> None:
        for transport in self._open_transports:
            transport.close()
            await cast(_Receiver, transport.get_protocol()).lost.wait()

    async def _open(self, received) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(received), local_addr=(self._server[0], 0)
        )
        self._open_transports.append(transport)
        return transport

    def _from_client(self, data: bytes, address: Address) -> None:
        self._client = address
        self._pass_on(data, self._far, self._server)

    def _from_server(self, data: bytes, address: Address) -> None:
        if self._client is not None:
            self._pass_on(data, self._near, self._client)

    def _pass_on(self, data: bytes, transport: asyncio.DatagramTransport, to: Address) -> None:
        weather, counts = self.weather, self.counts
        if len(data) + 28 > weather.mtu:
            counts.too_large += 1
            return
        if self._random.random() < weather.loss:
            counts.lost += 1
            counts.media_lost += transport is self._far and _is_media(data)
            return
        copies = 2 if self._random.random() < weather.doubled else 1
        counts.doubled += copies - 1
        counts.passed += 1
        for _ in range(copies):
            delay = self._random.uniform(0, weather.jitter_s)
            asyncio.get_running_loop().call_later(delay, _send, transport, data, to)


def _is_media(data: bytes) -> bool:
    """RTP and nothing else (RFC 7983, RFC 5761)."""
    return 128 <= data[0] < 192 and not 192 <= data[1] < 224


def _send(transport: asyncio.DatagramTransport, data: bytes, to: Address) -> None:
    if not transport.is_closing():
        transport.sendto(data, to)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, received) -> None:
        self._received = received
        self.lost = asyncio.Event()

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._received(data, addr)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
