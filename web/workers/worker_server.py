"""The server of a media worker: its callers come through the hub's door."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from aiohttp import web

from duplex.config import ServeConfig
from duplex.runtime import Runtime
from web.app import build_app
from web.calls import CALLS
from web.context import CONTEXT
from web.server import QUIT_S, Orders, Server, serve
from web.tls import ssl_context
from web.workers.inner import build_inner_app
from web.workers.line import DRAIN, SERVING, WorkerLine
from web.workers.siblings import HubDesk, Siblings

logger = logging.getLogger(__name__)


class WorkerServer(Server):
    """Takes connections from a line, and the questions of its siblings on a socket in a folder."""

    def __init__(
        self, config: ServeConfig, runtime: Runtime, line: int, folder: Path, home: str
    ) -> None:
        """`line`: the descriptor of the worker's end; `home`: the worker's name."""
        self._folder = folder
        self._siblings = Siblings(folder, home)
        app = build_app(config, runtime, HubDesk(self._siblings), self._siblings)
        super().__init__(config, runtime, app)
        runtime.yield_slot = self._siblings.yield_slot
        self.orders = Orders()
        self._line = WorkerLine(line, connected=self._connected, told=self._told)
        self._tls = ssl_context(config)
        self._inner = web.AppRunner(
            build_inner_app(app[CONTEXT], app[CALLS]), access_log=None, shutdown_timeout=QUIT_S
        )
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until the hub tells it to end, or is gone. Raises as `Server.start` does."""
        await serve(self, self.orders, lambda: self._line.tell(SERVING))

    async def drain(self) -> None:
        """Refuses new callers, and gives those that are there `drain_s` to leave."""
        timeout_s = self.config.drain_s
        await asyncio.gather(super().drain(), self._siblings.drain(timeout_s))

    async def stop(self, timeout_s: float = 20.0) -> None:
        """Ends sessions, then the rings, then the sockets. Idempotent."""
        await super().stop(timeout_s)
        await self._inner.cleanup()
        await self._siblings.close()

    async def _listen(self) -> None:
        await self._inner.setup()
        await web.UnixSite(self._inner, str(self._folder / self._siblings.home)).start()
        self._line.listen()

    def _connected(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self._take(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _take(self, connection: socket.socket) -> None:
        """A caller's connection becomes one of aiohttp's, once TLS stands."""
        application = self._runner.server
        assert application is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                application,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self.config.handshake_timeout_s if self._tls else None,
            )
        except OSError as error:  # a handshake that failed is the caller's
            logger.debug("a connection did not begin: %s", error)
            connection.close()

    def _told(self, message: bytes) -> None:
        """To drain; anything else, and the hub's end, is to quit."""
        self.orders.drain.set()
        if message != DRAIN:
            self.orders.quit.set()
