"""The server of the hub: it listens, starts the engine and the workers, and answers for all."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from duplex.config import ServeConfig
from duplex.runtime import Runtime
from engine.backoff import Backoff
from web.app import build_hub_app
from web.context import Context
from web.desk import LocalDesk
from web.server import STOP_S, Server
from web.tls import ssl_context
from web.workers.door import Door
from web.workers.hub import Hub
from web.workers.line import DRAIN
from web.workers.messages import HUB
from web.workers.pool import Pool, Start


class HubServer(Server):
    """Has workers carry its callers."""

    def __init__(
        self,
        config: ServeConfig,
        runtime: Runtime,
        folder: Path,
        start: Start,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        """`folder`: private, for the sockets between the processes. `runtime` serves chat; no
        session is opened on it.
        """
        desk = LocalDesk(config, runtime.clock)
        context = Context.of(config, runtime, desk)
        self._hub = Hub(context, desk, folder)
        self._pool = Pool(
            config.media_workers,
            start,
            load=self._hub.callers,
            born=self._hub.enter,
            died=self._hub.leave,
            changed=self._open_or_close,
            backoff=backoff or Backoff(),
        )
        self._hub.starts = self._pool.starts
        super().__init__(config, runtime, build_hub_app(context, self._hub))
        self._folder = folder
        self._door: Door | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, also where the configuration left the choice."""
        assert self._door is not None
        return self._door.port

    async def start(self) -> None:
        """Listens, and returns when every worker serves. Raises as `Server.start` does, or
        WorkerFailed.
        """
        await super().start()
        await self._pool.until_serving()

    async def drain(self) -> None:
        """Has the workers refuse new callers; returns when they have gone."""
        self._pool.tell(DRAIN)
        gone = self._pool.ended(self.config.drain_s + STOP_S)
        await asyncio.gather(super().drain(), gone)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Ends the workers, then the engine. Idempotent."""
        await self._pool.quit()
        if self._door is not None:
            self._door.stop()
        await super().stop(timeout_s)

    async def _listen(self) -> None:
        ssl_context(self.config)  # workers would only find out one by one
        self._door = Door(self.config.host, self.config.port, self._pool.hand_over)
        await web.UnixSite(self._runner, str(self._folder / HUB)).start()
        self._pool.begin()

    def _open_or_close(self, taken: bool) -> None:
        assert self._door is not None
        if taken:
            self._door.open()
        else:
            self._door.close()
