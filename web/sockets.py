"""WebSockets as every wire needs them: upgraded and bounded, or refused with a reason."""

from __future__ import annotations

import asyncio
import socket as sockets

from aiohttp import ClientConnectionError, WSCloseCode, hdrs, web

from duplex.errors import SessionError
from duplex.events import Failed
from web.connection import Wire, frame_type
from web.context import CONTEXT, Context
from web.errors import ApiError
from web.websocket import Socket

_SEND_BUFFER = 1 << 18
"""Bytes that the kernel holds for one client: seconds of its audio, not minutes."""
_RECEIVE_BUFFER = 1 << 18
"""Bytes that it holds of one client. All of them are read at once: left to itself it holds
megabytes of a sender in a hurry, and reading those holds up everybody else for longer than a frame.
"""


async def upgrade(
    request: web.Request, *, max_bytes: int | None = None
) -> tuple[Socket, asyncio.Transport | None]:
    """The socket of a request, and its transport if the client is still there.

    `max_bytes`: see `Socket`.

    Raises ApiError: 426 for a request that is no upgrade, 400 (for the count; nobody reads it)
    if the client has left already.
    """
    socket = Socket(request.app[CONTEXT], max_bytes=max_bytes)
    if not socket.can_prepare(request):
        raise ApiError(
            426,
            "upgrade_required",
            f"{request.path} is a WebSocket endpoint.",
            headers={hdrs.UPGRADE: "websocket"},
        )
    try:
        await socket.prepare(request)
    except ClientConnectionError as error:
        raise ApiError(400, "disconnected", "The client left before the upgrade.") from error
    transport = request.transport
    if transport is not None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)
        if max_bytes is None:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, _RECEIVE_BUFFER)
    return socket, transport


async def refuse(context: Context, socket: Socket, wire: Wire, error: SessionError) -> None:
    """Says why there is no session; the code tells clients whether to come again later."""
    context.counters.refused[error.code] += 1
    for message in wire.render(Failed(error=error)):
        await socket.send_frame(message, frame_type(message))
    theirs = error.type == "invalid_request_error"
    await socket.close(code=WSCloseCode.POLICY_VIOLATION if theirs else WSCloseCode.TRY_AGAIN_LATER)
