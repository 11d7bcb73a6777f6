"""A connection's handshake, its signs of life and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aioice.ice import Connection
from aiortc import RTCPeerConnection, RTCRtpReceiver
from aiortc.exceptions import InvalidStateError

from media.rtc.aiortc_internals import names


def watch(receiver: RTCRtpReceiver, heard: Callable[[], None]) -> None:
    """Calls `heard` for every datagram from the other side: media, reports, data, ICE checks."""
    connection: Connection = receiver.transport.transport._connection
    data_received, request_received = connection.data_received, connection.request_received

    def on_data(data: bytes, component: int) -> None:
        heard()
        data_received(data, component)

    def on_request(*args: Any) -> None:
        heard()
        request_received(*args)

    setattr(connection, "data_received", on_data)  # noqa: B010 (mypy: a method)
    setattr(connection, "request_received", on_request)  # noqa: B010


def all_delivered(connection: RTCPeerConnection) -> bool:
    """Whether the caller has acknowledged every message. Each acknowledgement is a datagram."""
    sctp = connection.sctp
    return sctp is None or not (
        sctp._data_channel_queue or sctp._outbound_queue or sctp._sent_queue
    )


class Handshake:
    """Knows the tasks in which a connection's handshake runs."""

    def __init__(self, connection: RTCPeerConnection) -> None:
        """To be made before the first description is set."""
        self._connection = connection
        self._connect = getattr(connection, names.CONNECT)
        self._tasks: set[asyncio.Task[None]] = set()
        setattr(connection, names.CONNECT, self._tracked)

    async def settle(self) -> None:
        """After the connection's `close`: returns when nothing of the handshake is left."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if consents := self._consents():
            self.cancel()
            await asyncio.wait(consents)

    def cancel(self) -> None:
        """Ends what is left, without waiting for it."""
        for task in [*self._tasks, *self._consents()]:
            task.cancel()

    def _consents(self) -> list[asyncio.Task[None]]:
        tasks: list[asyncio.Task[None] | None] = [
            transport._connection._query_consent_task
            for transport in getattr(self._connection, names.ICE_TRANSPORTS)
        ]
        return [task for task in tasks if task is not None and not task.done()]

    async def _tracked(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect()
        except InvalidStateError:  # it was closed under its hands
            if self._connection.signalingState != "closed":
                raise
        finally:
            self._tasks.discard(task)


def abandon(connection: RTCPeerConnection) -> None:
    """Ends sockets and threads of a connection whose `close` did not return."""
    for transport in getattr(connection, names.ICE_TRANSPORTS):
        for protocol in transport._connection._protocols:
            protocol.transport.abort()
    for receiver in connection.getReceivers():
        getattr(receiver, names.STOP_DECODER)()
