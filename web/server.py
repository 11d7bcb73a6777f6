"""Runs the application: listens, starts the runtime, and on a signal drains and ends in time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

from aiohttp import web

from duplex.config import ServeConfig
from duplex.runtime import Runtime
from web.app import build_app
from web.context import CONTEXT
from web.malformed import connection_logger
from web.robot import ROBOTS
from web.tls import ssl_context

logger = logging.getLogger(__name__)

STOP_S = 20.0
"""How long the end may take once the sessions have had their time."""
QUIT_S = 2.0
"""The same after a second signal."""


class ListenError(Exception):
    """The address can't be listened on."""


class Server:
    """A listening server over a runtime; it starts both and ends both."""

    def __init__(
        self, config: ServeConfig, runtime: Runtime, app: web.Application | None = None
    ) -> None:
        """`app` is the whole application over `runtime` unless another is given."""
        self.config = config
        self.runtime = runtime
        app = app or build_app(config, runtime)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=connection_logger(app[CONTEXT].counters),
            keepalive_timeout=config.handshake_timeout_s,
            shutdown_timeout=QUIT_S,
            lingering_time=QUIT_S,
        )

    @property
    def port(self) -> int:
        """The port that is listened on, also where the configuration left the choice."""
        port: int = self._runner.addresses[0][1]
        return port

    @property
    def address(self) -> str:
        """The page's address."""
        host = "localhost" if self.config.host in ("0.0.0.0", "::") else self.config.host
        scheme, shown = self.config.scheme, f"[{host}]" if ":" in host else host
        return f"{scheme}://{shown}:{self.port}"

    async def start(self) -> None:
        """Listens first, so that `/health` and `/ready` answer while the model loads.

        Raises ListenError, BadCertificate, or EngineError if the model or the robots' policy can't
        be loaded.
        """
        await self._runner.setup()
        await self._listen()
        try:
            async with asyncio.TaskGroup() as loading:
                loading.create_task(self.runtime.start())
                loading.create_task(self._runner.app[ROBOTS].start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _listen(self) -> None:
        """Lets callers come."""
        host, port = self.config.host, self.config.port
        tls = ssl_context(self.config)
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024, ssl_context=tls).start()
        except OSError as error:
            raise ListenError(f"can't listen on {host}, port {port}: {error.strerror}") from error

    async def drain(self) -> None:
        """Refuses new callers, and gives those that are there `drain_s` to leave."""
        timeout_s = self.config.drain_s
        await asyncio.gather(
            self.runtime.drain(timeout_s), self._runner.app[ROBOTS].drain(timeout_s)
        )

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Ends sessions (their sockets close with 1012), then the engine, then the sockets.

        Idempotent; also ends what `start` has only half begun.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.runtime.stop()
                await self._runner.cleanup()
        except TimeoutError:
            logger.error("the end took longer than %g s and was cut short", timeout_s)

    async def __aenter__(self) -> Server:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Orders:
    """To drain, and then to end at once, from whoever may give them."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.quit = asyncio.Event()

    @classmethod
    def by_signal(cls) -> Orders:
        """SIGTERM or SIGINT, and then the same again."""
        orders = cls()

        def signalled() -> None:
            (orders.quit if orders.drain.is_set() else orders.drain).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        return orders


async def serve(server: Server, orders: Orders, listening: Callable[[], None]) -> None:
    """Serves until it is told to drain, and then for up to `drain_s`, or until it has to quit.
    `listening` is called when sessions can be opened. Raises as `Server.start` does.
    """
    try:
        await _unless(orders.drain, server.start())
        if not orders.drain.is_set():
            listening()
        await orders.drain.wait()
        if sessions := len(server.runtime.sessions):
            logger.info("draining: live sessions (%d) have %g s", sessions, server.config.drain_s)
        await _unless(orders.quit, server.drain())
    finally:
        await _unless(orders.quit, server.stop())
        if orders.quit.is_set():
            await server.stop(QUIT_S)


async def _unless(event: asyncio.Event, work: Coroutine[object, object, object]) -> None:
    """Does the work, or gives it up when the event is set."""
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        waiter.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)
