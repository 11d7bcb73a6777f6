"""The server's address: connections are accepted here and handed to workers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from web.server import ListenError

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64
_PAUSE_S: Final = 1.0
"""After the system had no descriptor left for a connection."""
_FULL_S: Final = 0.02
"""After no worker took a connection: they have so many to look at already."""


class Door:
    """Listens; while nobody takes connections they wait in the system's own queue."""

    def __init__(self, host: str, port: int, hand_over: Callable[[socket.socket], bool]) -> None:
        """`hand_over` gives a connection away; False if nobody takes it at the moment.

        Raises ListenError.
        """
        self._hand_over = hand_over
        self._open = False
        self._held: socket.socket | None = None
        self._pausing: asyncio.TimerHandle | None = None
        try:
            self._listeners = _listen(host, port)
        except OSError as error:
            raise ListenError(f"can't listen on {host}, port {port}: {error.strerror}") from error

    @property
    def port(self) -> int:
        """The port that is listened on, also where the choice was left to the system."""
        port: int = self._listeners[0].getsockname()[1]
        return port

    def open(self) -> None:
        """Somebody takes connections. Idempotent."""
        if not self._open:
            self._open = True
            if self._pausing is None:
                self._watch()

    def close(self) -> None:
        """Nobody does, for now. Idempotent."""
        self._open = False
        self._unwatch()

    def stop(self) -> None:
        """Listens no more."""
        self.close()
        if self._pausing is not None:
            self._pausing.cancel()
        if self._held is not None:
            self._held.close()
        for listener in self._listeners:
            listener.close()

    def _watch(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _unwatch(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                logger.error("a connection can't be accepted: %s", error)
                self._pause(_PAUSE_S)
                return
            if not self._hand_over(connection):
                self._held = connection
                self._pause(_FULL_S)
                return
            connection.close()

    def _pause(self, seconds: float) -> None:
        self._unwatch()
        self._pausing = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pausing = None
        if self._held is not None:
            if not self._hand_over(self._held):
                self._pause(_FULL_S)
                return
            self._held.close()
            self._held = None
        if self._open:
            self._watch()


def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host, all on one port."""
    listeners: list[socket.socket] = []
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = listeners[0].getsockname()[1] if listeners else port
            listener = socket.create_server(
                (str(address[0]), chosen), family=family, backlog=_BACKLOG
            )
            listener.setblocking(False)
            listeners.append(listener)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
