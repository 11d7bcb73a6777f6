"""What an OpenPI client's messages ask for. No I/O.

One robot's connection has one session at a time, whose model-side state `session_id` names. Runs in
the policy's process: see `engine.policy` for what that may import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.policy import Request
from media.ndarray_msgpack import CodecError, unpackb

MAX_REQUEST_BYTES: Final = 64 << 20
"""Of one message."""
DEFAULT_SESSION: Final = "default"

_MAX_ID: Final = 256


class InvalidRequest(Exception):
    """A message that is no request; the session is as it was. Says why, for the log."""


@dataclass(frozen=True)
class Reset:
    """The robot begins anew: its next observation is a session's first."""


class RobotSession:
    """The requests of one connection, in order."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._episodes = 0
        self._id: str | None = None
        self._ended: str | None = None

    def read(self, payload: bytes | bytearray | memoryview) -> Request | Reset:
        """Reads a message: an observation for the policy, or a reset. Raises InvalidRequest."""
        try:
            message = unpackb(payload)
        except CodecError as error:
            raise InvalidRequest(str(error)) from error
        if not isinstance(message, dict):
            raise InvalidRequest("the message is no map")
        endpoint = message.pop("endpoint", "infer")
        if not isinstance(endpoint, str) or endpoint not in ("infer", "reset"):
            raise InvalidRequest("endpoint is neither infer nor reset")
        if endpoint == "reset":
            self.end()
            return Reset()
        session_id = message.get("session_id")
        if session_id is None:
            session_id = DEFAULT_SESSION
        if not isinstance(session_id, str) or len(session_id) > _MAX_ID:
            raise InvalidRequest(f"session_id is no text of at most {_MAX_ID} characters")
        reset = session_id != self._id
        if reset:
            self.end()
            self._id = session_id
            self._episodes += 1
        return Request(message, reset, self._state)

    def end(self) -> None:
        """The connection's current session is over."""
        if self._id is not None:
            self._ended = self._state
            self._id = None

    def take_ended(self) -> str | None:
        """The state that has become useless since this was last asked, if any."""
        ended, self._ended = self._ended, None
        return ended

    @property
    def _state(self) -> str:
        return f"{self._connection}.{self._episodes}"
