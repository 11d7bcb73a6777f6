"""What a worker answers to the other processes of its server, on a socket of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from aiohttp import WSMsgType, web

from duplex.errors import SessionError
from duplex.resume import Attachment, ResyncRequired
from duplex.wire.frames import Binary
from web.calls import CALLS, Calls
from web.context import CONTEXT, Context
from web.errors import json_response, shape_errors
from web.exposition import CONTENT_TYPE, own_exposition
from web.resumable import ResumableConnection
from web.sockets import upgrade
from web.websocket import Socket
from web.workers.messages import CLIENT_HEADER, Held, Resume, Resumed, Yes


def build_inner_app(context: Context, calls: Calls) -> web.Application:
    """An application over the worker's own parts. Whoever reaches its socket is one of us."""
    app = web.Application(middlewares=[shape_errors])
    app[CONTEXT], app[CALLS] = context, calls
    app.add_routes(
        [
            web.get("/metrics", _metrics),
            web.get("/sessions", _have_session),
            web.get("/held", _held),
            web.post("/slots/yield", _yield_slot),
            web.post("/calls/{call_id}/hangup", _hang_up),
            web.get("/resume", _resume, allow_head=False),
        ]
    )
    return app


async def _metrics(request: web.Request) -> web.Response:
    """This process's own."""
    body = own_exposition(request.app[CONTEXT])
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def _have_session(request: web.Request) -> web.Response:
    return json_response(Yes(request.query["id"] in request.app[CONTEXT].runtime.sessions))


async def _held(request: web.Request) -> web.Response:
    return json_response(Held(request.app[CONTEXT].runtime.resumption.held_since))


async def _yield_slot(request: web.Request) -> web.Response:
    return json_response(Yes(await request.app[CONTEXT].runtime.resumption.yield_slot()))


async def _hang_up(request: web.Request) -> web.Response:
    call_id, client = request.match_info["call_id"], request.headers[CLIENT_HEADER]
    await request.app[CALLS].find(call_id, client).hang_up()
    return web.Response()


async def _resume(request: web.Request) -> web.StreamResponse:
    """A session of ours, for a client that another worker has."""
    context = request.app[CONTEXT]
    socket, transport = await upgrade(request)
    if transport is None:
        return socket
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        return socket
    asked = msgspec.json.decode(message.data, type=Resume)
    try:
        attachment, missed = await context.runtime.resumption.resume(
            asked.session_id, asked.resume_token, asked.last_seq
        )
    except SessionError as error:
        return await _answer(socket, Resumed.refused(error))
    except ResyncRequired as error:
        return await _answer(socket, Resumed(resync=str(error)))
    await _Resumed(context, socket, transport, attachment, missed).run()
    return socket


async def _answer(socket: Socket, outcome: Resumed) -> Socket:
    await socket.send_frame(msgspec.json.encode(outcome), WSMsgType.BINARY)
    await socket.close()
    return socket


class _Resumed(ResumableConnection):
    """Carries a session that has lost its socket, over one to the worker that has its client."""

    def __init__(
        self,
        context: Context,
        socket: Socket,
        transport: asyncio.Transport,
        attachment: Attachment,
        missed: Sequence[bytes],
    ) -> None:
        session, wire = attachment.session, attachment.wire
        super().__init__(
            context, socket, transport, session, wire, autostart=False, attachment=attachment
        )
        self._missed = missed

    def _begin(self) -> None:
        super()._begin()
        resumed = Binary(msgspec.json.encode(Resumed()))
        self._first = [resumed, self._realtime.resumed(self._session), *self._missed]
