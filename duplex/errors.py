"""What can go wrong in a session, as its user is told."""

from __future__ import annotations

from typing import Literal

_MAX_MESSAGE = 1_000
_MAX_PARAM = 200

ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


class SessionError(Exception):
    """An error that reaches the client.

    `code` is one of the protocol's codes, `param` the field at fault as the client named it, and
    `event_id` the client's event that caused it. A session outlives its errors unless `fatal`.
    `message` and `param` are cut: a client's own words come back in them, at any length.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        type: ErrorType = "invalid_request_error",
        fatal: bool = False,
    ) -> None:
        super().__init__(message[:_MAX_MESSAGE])
        self.code = code
        self.message = message[:_MAX_MESSAGE]
        self.param = param and param[:_MAX_PARAM]
        self.event_id = event_id
        self.type: ErrorType = type
        self.fatal = fatal


def resource_exhausted(slots: int) -> SessionError:
    """No slot is free; the connection closes after it."""
    all_of_them = (
        "The one conversation slot of this server is"
        if slots == 1
        else f"All {slots} conversation slots of this server are"
    )
    return SessionError(
        "resource_exhausted",
        f"{all_of_them} in use. Try again later.",
        type="server_error",
        fatal=True,
    )


def overloaded() -> SessionError:
    """A slot is free, but the model can't keep up with one more; the connection closes after it."""
    return SessionError(
        "resource_exhausted",
        "This server can't keep up with another conversation at the moment. Try again later.",
        type="server_error",
        fatal=True,
    )


def internal_error() -> SessionError:
    """Something broke on our side. The log has the details, the client doesn't need them."""
    return SessionError(
        "internal_error",
        "The server had an internal error and ended this session.",
        type="server_error",
        fatal=True,
    )
