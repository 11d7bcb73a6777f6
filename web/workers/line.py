"""The line between the hub and a worker: a pair of sockets, one byte a message, connections beside
them. Each end knows by it that the other has gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

CONNECTION: Final = b"c"
"""Downwards, with a connection that was accepted."""
DRAIN: Final = b"d"
QUIT: Final = b"q"
LISTENING: Final = b"l"
"""Upwards: connections may come."""
SERVING: Final = b"s"
"""Upwards: sessions can be opened."""


class HubLine:
    """The hub's end."""

    def __init__(self, said: Callable[[bytes], None]) -> None:
        """`said` is called with each byte that the worker sends."""
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._said = said
        asyncio.get_running_loop().add_reader(self._ours, self._hear)

    @property
    def descriptor(self) -> int:
        """The worker's end, to be inherited."""
        return self._theirs.fileno()

    def passed(self) -> None:
        """The worker has its end now."""
        self._theirs.close()

    def hand_over(self, connection: socket.socket) -> bool:
        """Gives a connection to the worker. False if it doesn't take it; it is still ours then."""
        try:
            return socket.send_fds(self._ours, [CONNECTION], [connection.fileno()]) > 0
        except OSError:
            return False

    def tell(self, message: bytes) -> None:
        """Sends a message; in vain if the worker is gone or hangs."""
        try:
            self._ours.send(message)
        except OSError:
            return

    def close(self) -> None:
        """Hangs up; idempotent."""
        self._theirs.close()
        if self._ours.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._ours)
            self._ours.close()

    def _hear(self) -> None:
        try:
            heard = self._ours.recv(64)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:  # the process is seen off by whoever waits for it
            asyncio.get_running_loop().remove_reader(self._ours)
        for byte in heard:
            self._said(bytes((byte,)))


class WorkerLine:
    """The worker's end."""

    def __init__(
        self,
        descriptor: int,
        *,
        connected: Callable[[socket.socket], None],
        told: Callable[[bytes], None],
    ) -> None:
        """`connected` gets each connection, `told` every other message; QUIT also when the hub
        has gone.
        """
        self._line = socket.socket(fileno=descriptor)
        self._line.set_inheritable(False)
        self._line.setblocking(False)
        self._connected = connected
        self._told = told

    def listen(self) -> None:
        """Connections may come from now on."""
        asyncio.get_running_loop().add_reader(self._line, self._hear)
        self.tell(LISTENING)

    def tell(self, message: bytes) -> None:
        """Sends a message; in vain if the hub is gone."""
        try:
            self._line.send(message)
        except OSError:
            return

    def _hear(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._line, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        for descriptor in descriptors:
            self._connected(socket.socket(fileno=descriptor))
        if not message:
            asyncio.get_running_loop().remove_reader(self._line)
            self._told(QUIT)
        elif message != CONNECTION:
            self._told(message)
