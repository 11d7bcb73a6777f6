"""The realtime sockets: what is settled before the upgrade, and the session that follows it."""

from __future__ import annotations

from aiohttp import web

from duplex.errors import SessionError
from duplex.session import Mode
from web.connection import Connection
from web.context import CLIENT, CONTEXT
from web.opening import create_session, session_id_of, wire_for
from web.resumable import ResumableConnection
from web.sockets import refuse, upgrade


async def realtime_socket(request: web.Request) -> web.StreamResponse:
    """`WS /v1/realtime`: OpenAI's Realtime protocol, or full duplex with `?duplex=1`."""
    autostart = request.query.get("autostart") != "0"
    if request.query.get("duplex") == "1":
        return await _serve(request, Mode.DUPLEX, autostart=autostart)
    return await _serve(request, Mode.TURNS, autostart=True)


async def duplex_socket(request: web.Request) -> web.StreamResponse:
    """`WS /v1/duplex`: a full-duplex session that the client's first event creates."""
    return await _serve(request, Mode.DUPLEX, autostart=False)


async def _serve(request: web.Request, mode: Mode, *, autostart: bool) -> web.StreamResponse:
    context, client = request.app[CONTEXT], request[CLIENT]
    with await context.desk.hold(client):
        session_id = await session_id_of(request)
        resumable = mode is Mode.DUPLEX and wants_resume(request)
        wire = wire_for(request, session_id, mode, resumable=resumable)
        socket, transport = await upgrade(request)
        if transport is None:
            return socket
        try:
            session = create_session(request, session_id, mode)
        except SessionError as error:
            await refuse(context, socket, wire, error)
            return socket
        kind = ResumableConnection if resumable else Connection
        await kind(context, socket, transport, session, wire, autostart=autostart).run()
    return socket


def wants_resume(request: web.Request) -> bool:
    """Whether the session is held when its socket breaks: `?resume=0` is for clients that don't
    come back, who would keep a slot for nothing.
    """
    resumption = request.app[CONTEXT].runtime.resumption
    return resumption.enabled and request.query.get("resume") != "0"
