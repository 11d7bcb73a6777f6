"""The messages between a server and the process of its policy: a header, then bytes.

The standard library only, for both ends. What robots send passes through unread: it is decoded
where the policy runs, so that no size of it holds up the server.
"""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """What a message is. Down: START first, STOP last. Up: LOADED or UNABLE first."""

    START = 1
    """The policy's name, options as JSON."""
    REQUEST = 2
    """A robot's message. Exactly one REPLY, INVALID or FAILED answers it."""
    LEAVE = 3
    """A robot is gone."""
    STOP = 4
    LOADED = 5
    """The policy's metadata, as robots get it."""
    UNABLE = 6
    """Why there is no policy, in words."""
    REPLY = 7
    """What the robot gets."""
    INVALID = 8
    """Why its message is no request, for the log."""
    FAILED = 9
    """What it is told of a failure."""


@dataclass(frozen=True)
class Message:
    """One message of either direction."""

    kind: Kind
    connection: int = 0
    """Names a robot's connection; 0 is none."""
    payload: bytes | bytearray = b""
    arrived: float = 0.0
    """When the robot's message was there: seconds of the machine's monotonic clock."""
    prev_total_ms: float | None = None
    """How long the robot's request before took in all."""

    @property
    def header(self) -> bytes:
        """What goes before the payload."""
        total_ms = -1.0 if self.prev_total_ms is None else self.prev_total_ms
        return _HEADER.pack(self.kind, len(self.payload), self.connection, self.arrived, total_ms)


_HEADER: Final = struct.Struct("<BxxxIQdd")
HEADER_BYTES: Final = _HEADER.size


def payload_size(header: bytes | bytearray) -> int:
    """Bytes that follow a header."""
    return int(_HEADER.unpack(header)[1])


def message(header: bytes | bytearray, payload: bytes | bytearray) -> Message:
    """The message that a header and its payload make."""
    kind, _, connection, arrived, total_ms = _HEADER.unpack(header)
    return Message(Kind(kind), connection, payload, arrived, None if total_ms < 0 else total_ms)


class Port:
    """The policy's end, which blocks."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def receive(self) -> Message:
        """The next message. Raises EOFError when the owner is gone."""
        header = self._exactly(HEADER_BYTES)
        return message(header, self._exactly(payload_size(header)))

    @property
    def waiting(self) -> bool:
        """Whether a message has come."""
        return bool(self._poll.poll(0))

    def send(self, message: Message) -> None:
        """Sends a message. Raises ConnectionError when the owner is gone."""
        self._channel.sendall(message.header)
        self._channel.sendall(message.payload)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = self._channel.recv_into(view[at:])
            if not count:
                raise EOFError("the owner is gone")
            at += count
        return data
