"""A server of the test's own, for what the real one never does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from aiohttp import web

Socket = web.WebSocketResponse
Script = Callable[[Socket], Awaitable[None]]
StartPeer = Callable[[Script], AbstractAsyncContextManager[str]]


@pytest.fixture
def start_peer() -> StartPeer:
    """`async with start_peer(script) as url`: opens a session, then leaves it to the script."""

    @asynccontextmanager
    async def start(script: Script) -> AsyncIterator[str]:
        async def serve(request: web.Request) -> web.StreamResponse:
            socket: Socket = web.WebSocketResponse()
            await socket.prepare(request)
            assert (await socket.receive_json())["type"] == "session.update"
            for kind in ("session.created", "session.updated"):
                await socket.send_json({"type": kind, "session_id": "s", "session": {}})
            await script(socket)
            return socket

        app = web.Application()
        app.router.add_get("/v1/realtime", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield f"ws://{host}:{port}"
        finally:
            await runner.cleanup()

    return start
