"""A session that one worker has and another asks for, over their own socket."""

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from web.calls import CALLS
from web.context import CONTEXT
from web.workers.inner import build_inner_app
from web.workers.siblings import Siblings

HOME = "0-0"


@pytest.fixture
def reachable(start_server, tmp_path):
    """`async with reachable() as (server, siblings)`: as a worker, and as another one sees it."""

    @asynccontextmanager
    async def start():
        async with start_server(resume_grace_s=30) as server:
            app = server._runner.app
            runner = web.AppRunner(build_inner_app(app[CONTEXT], app[CALLS]), access_log=None)
            await runner.setup()
            try:
                await web.UnixSite(runner, str(tmp_path / HOME)).start()
                yield server, Siblings(tmp_path, "1-0")
            finally:
                await runner.cleanup()

    return start


@asynccontextmanager
async def held(server, call):
    """A session that has lost its client; its id and its token."""
    async with call(server, "/v1/realtime?duplex=1") as caller:
        created = await caller.until("session.created")
        await caller.configure()
        caller.socket._response.connection.transport.abort()
        await until_held(server)
        yield created["session_id"], created["resume_token"]


async def until_held(server):
    async with asyncio.timeout(20):
        while not server.runtime.resumption.held:
            await asyncio.sleep(0.01)


async def test_who_leaves_a_session_that_is_relayed_leaves_nothing_open(reachable, call):
    """A connection that is freed while open is a warning, and so a failure."""

    async def relay(session, token):
        async with siblings.resume(HOME, session, token, 0) as socket:
            assert b"session.resumed" in (await socket.receive()).data
            asyncio.current_task().cancel()
            cycle = [socket]
            cycle.append(cycle)  # so that nothing is freed, and thereby closed, in good order

    async with reachable() as (server, siblings), held(server, call) as (session, token):
        relaying = asyncio.create_task(relay(session, token))
        await asyncio.wait({relaying})
        assert relaying.cancelled()
        del relaying
        await until_held(server)  # its socket broke, and wasn't closed: it can be resumed again
        gc.collect()
