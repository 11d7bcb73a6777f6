"""How many sources of RTP and RTCP a peer may have."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aioice.ice import Connection
from aiortc import RTCPeerConnection
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtp import is_rtcp

from media.rtc.aiortc_internals import names


def bound_sources(connection: RTCPeerConnection, limit: int, refused: Callable[[], None]) -> None:
    """Drops what comes from more than `limit` sources (SSRCs), RTP and RTCP, before it costs
    anything, and calls `refused` for each packet. Only a source whose packet was authentic counts.
    Each of them has state in SRTP, in aiortc's statistics and in every report. To be called when
    the other side's description is set.
    """
    transports = {transceiver.receiver.transport for transceiver in connection.getTransceivers()}
    if connection.sctp is not None:
        transports.add(connection.sctp.transport)
    for transport in transports:
        _bound(transport, limit, refused)


def _bound(transport: RTCDtlsTransport, limit: int, refused: Callable[[], None]) -> None:
    known: set[int] = set()
    ice: Connection = transport.transport._connection
    data_received = ice.data_received

    def admitted(data: bytes) -> bool:
        if len(known) < limit or len(data) < 12 or _source(data) in known:
            return True
        refused()
        return False

    def on_data(data: bytes, component: int) -> None:
        if data[:1] < b"\x80" or admitted(data):  # DTLS begins below (RFC 7983)
            data_received(data, component)

    def counted(handle: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
        async def handle_new(data: bytes, **rest: Any) -> None:
            if admitted(data):  # it has waited since `on_data` saw it
                known.add(_source(data))
                await handle(data, **rest)

        return handle_new

    setattr(ice, "data_received", on_data)  # noqa: B010 (mypy: a method)
    for name in names.HANDLERS:
        setattr(transport, name, counted(getattr(transport, name)))


def _source(data: bytes) -> int:
    """The SSRC of a packet of RTP or RTCP, protected or not."""
    start = 4 if is_rtcp(data) else 8
    return int.from_bytes(data[start : start + 4])
