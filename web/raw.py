"""`WS /v1/audio/duplex`: raw PCM, for clients without Opus or base64."""

from __future__ import annotations

from aiohttp import web

from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.settings import Settings
from duplex.wire.raw import RawWire
from web.connection import Connection
from web.context import CLIENT, CONTEXT
from web.sockets import refuse, upgrade


async def raw_socket(request: web.Request) -> web.StreamResponse:
    """A full-duplex session that the client's `open` gives its slot."""
    context = request.app[CONTEXT]
    runtime, spec = context.runtime, context.runtime.spec
    with await context.desk.hold(request[CLIENT]):
        socket, transport = await upgrade(request)
        if transport is None:
            return socket
        session_id = new_id("sess")
        wire = RawWire(session_id, spec)
        try:
            settings = Settings(idle_timeout_s=context.config.idle_timeout_s)
            session = runtime.create_session(session_id, settings)
        except SessionError as error:
            await refuse(context, socket, wire, error)
            return socket
        await Connection(context, socket, transport, session, wire, autostart=False).run()
    return socket
