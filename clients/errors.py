"""What can go wrong between a client and a server."""

from __future__ import annotations


class ClientError(Exception):
    """Anything a client can run into. The message is meant for people."""


class Unreachable(ClientError):
    """No server answers at this address, or not in time."""


class Unauthorized(ClientError):
    """The server takes no such API key."""


class Refused(ClientError):
    """The server won't open this session. `code` is its own word for why."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.param = param


class ConnectionLost(ClientError):
    """The socket ended before the session did. `code` is the WebSocket close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(
            f"the connection was lost: {code}{f' ({reason})' if reason else ''}"
            " before the session was closed"
        )
        self.code = code
        self.reason = reason


class BadEvent(ClientError):
    """The server sent what is no event of this protocol."""
