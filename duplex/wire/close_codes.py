"""WebSocket close codes, the same on every wire."""

from __future__ import annotations

_CODES = {
    "client_close": 1000,
    "disconnected": 1000,
    "idle_timeout": 1000,
    "refused": 1008,
    "resource_exhausted": 1013,
    "server_shutdown": 1012,
    "resume_expired": 1000,
    "resync_required": 1000,
    "yielded": 1013,
}


def close_code(reason: str) -> int:
    """The close code for the reason a session ended with."""
    return _CODES.get(reason, 1011)
