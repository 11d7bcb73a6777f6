"""Requests that are no media, passed on to the hub, which has the chat model and the policy."""

from __future__ import annotations

from io import BytesIO
from typing import Final

import aiohttp
from aiohttp import ClientConnectionError, WSCloseCode, hdrs, web

from web.bodies import read_body
from web.context import CLIENT, CONTEXT
from web.errors import ApiError
from web.sockets import upgrade
from web.workers.messages import CLIENT_HEADER
from web.workers.relay import relay
from web.workers.siblings import Siblings

_HEADERS: Final = (hdrs.CONTENT_TYPE, hdrs.RETRY_AFTER, hdrs.CACHE_CONTROL)


async def forward(request: web.Request) -> web.StreamResponse:
    """A request, and its answer as it comes. Raises ApiError as `read_body` does."""
    siblings = _siblings(request)
    body = await read_body(request, int(request.app[CONTEXT].config.max_message_bytes))
    headers = {CLIENT_HEADER: request[CLIENT]}
    if hdrs.CONTENT_TYPE in request.headers:
        headers[hdrs.CONTENT_TYPE] = request.headers[hdrs.CONTENT_TYPE]
    try:
        async with (
            siblings.to_hub() as http,
            http.request(
                request.method, request.path_qs, data=BytesIO(body), headers=headers
            ) as answer,
        ):
            passed = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=passed)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
    except aiohttp.ClientConnectorError as error:
        raise _ends() from error


async def forward_socket(request: web.Request, path: str, max_bytes: int) -> web.StreamResponse:
    """A WebSocket to one of the hub's paths, with messages of up to so many bytes."""
    siblings = _siblings(request)
    socket, transport = await upgrade(request, max_bytes=max_bytes)
    if transport is None:
        return socket
    headers = {CLIENT_HEADER: request[CLIENT]}
    async with siblings.to_hub() as http:
        try:
            theirs = await http.ws_connect(path, headers=headers, max_msg_size=0, decode_text=False)
        except (aiohttp.WSServerHandshakeError, ClientConnectionError):
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return socket
        code = await relay(socket, theirs)
    await socket.close(code=code or WSCloseCode.INTERNAL_ERROR)
    return socket


def _siblings(request: web.Request) -> Siblings:
    siblings = request.app[CONTEXT].siblings
    assert siblings is not None
    return siblings


def _ends() -> ApiError:
    return ApiError(503, "internal_error", "The server ends.", type="server_error")
