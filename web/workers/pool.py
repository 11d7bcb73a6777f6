"""The workers of a hub: started, given connections, told to end, started again when they die."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Final

from engine.backoff import Backoff
from web.workers.line import LISTENING, QUIT, SERVING, HubLine

logger = logging.getLogger(__name__)

Start = Callable[[int, str], Coroutine[object, object, asyncio.subprocess.Process]]
"""Starts the process of a worker, which inherits this descriptor, its end of the line, and has
this home.
"""

QUIT_S: Final = 5.0
"""How long a worker may take that is told to quit."""


class WorkerFailed(Exception):
    """A worker ended before it served anybody."""


class Worker:
    """One that lives, as the hub sees it."""

    def __init__(self, number: int, home: str, heard: Callable[[], None]) -> None:
        self.number = number
        self.home = home
        self.line = HubLine(self._said)
        self.process: asyncio.subprocess.Process | None = None
        self.listening = False
        self.serving = False
        self.turn = 0
        """When it was given a connection last, counted over all workers."""
        self._heard = heard

    def _said(self, message: bytes) -> None:
        self.listening = self.listening or message == LISTENING
        self.serving = self.serving or message == SERVING
        self._heard()


class Pool:
    """So many workers."""

    def __init__(
        self,
        count: int,
        start: Start,
        *,
        load: Callable[[str], int],
        born: Callable[[str], None],
        died: Callable[[str], None],
        changed: Callable[[bool], None],
        backoff: Backoff,
    ) -> None:
        """`load` says how many callers a home has. `born` and `died` are told of each home;
        `changed`, whether any worker takes connections now.
        """
        self.starts = [0] * count
        """How often each worker was started."""
        self._start = start
        self._load = load
        self._born = born
        self._died = died
        self._changed = changed
        self._backoff = backoff
        self._workers: dict[int, Worker] = {}
        self._turns = itertools.count(1)
        self._keeping: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._order: bytes | None = None
        self._ending = asyncio.Event()

    def begin(self) -> None:
        """Starts them all."""
        self._keeping = [
            asyncio.create_task(self._keep(number), name=f"worker-{number}")
            for number in range(len(self.starts))
        ]

    async def until_serving(self) -> None:
        """Returns when sessions can be opened at each. Raises WorkerFailed if one can't start."""
        while len(self._workers) < len(self.starts) or not all(
            worker.serving for worker in self._workers.values()
        ):
            for keeping in self._keeping:
                if keeping.done():
                    keeping.result()
            self._news.clear()
            await self._news.wait()

    def hand_over(self, connection: socket.socket) -> bool:
        """Gives a connection to the worker with the fewest callers; False if nobody takes it."""
        candidates = [worker for worker in self._workers.values() if worker.listening]
        for worker in sorted(candidates, key=lambda w: (self._load(w.home), w.turn)):
            if worker.line.hand_over(connection):
                worker.turn = next(self._turns)
                return True
        return False

    def tell(self, order: bytes) -> None:
        """Tells all workers, those to come included, and starts none again."""
        self._order = order
        self._ending.set()
        for worker in self._workers.values():
            worker.line.tell(order)

    async def ended(self, timeout_s: float) -> None:
        """Returns when all have ended, or after this time."""
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=timeout_s)

    async def quit(self) -> None:
        """Ends them all; idempotent, bounded in time."""
        self.tell(QUIT)
        await self.ended(QUIT_S)
        for worker in self._workers.values():
            if worker.process is not None:
                logger.error("media worker %d does not quit; it is killed", worker.number)
                worker.process.kill()
        await self.ended(QUIT_S)

    async def _keep(self, number: int) -> None:
        """A worker, and another when it has died."""
        failures, loop = 0, asyncio.get_running_loop()
        try:
            for generation in itertools.count():
                began = loop.time()
                served = await self._live(number, f"{number}-{generation}")
                if self._ending.is_set():
                    return
                if not served and generation == 0:
                    raise WorkerFailed(f"media worker {number} can't be started: see the log")
                if loop.time() - began >= self._backoff.longest_s:
                    failures = 0
                delay = self._backoff.delay_s(failures)
                failures += 1
                logger.info("media worker %d starts again in %.2f s", number, delay)
                try:
                    async with asyncio.timeout(delay):
                        await self._ending.wait()
                except TimeoutError:
                    continue
                return
        finally:
            self._news.set()

    async def _live(self, number: int, home: str) -> bool:
        """One worker's life; whether it served."""
        worker = Worker(number, home, self._heard)
        self.starts[number] += 1
        try:
            worker.process = await self._start(worker.line.descriptor, home)
            worker.line.passed()
            self._workers[number] = worker
            self._born(home)
            if self._order is not None:
                worker.line.tell(self._order)
            how = _in_words(await worker.process.wait())
            if not self._ending.is_set():
                logger.error(
                    "media worker %d %s; its %d callers are gone", number, how, self._load(home)
                )
            self._died(home)
        except OSError as error:
            raise WorkerFailed(f"media worker {number} can't be started: {error}") from error
        finally:
            worker.line.close()
            self._workers.pop(number, None)
            self._heard()
        return worker.serving

    def _heard(self) -> None:
        self._changed(any(worker.listening for worker in self._workers.values()))
        self._news.set()


def _in_words(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"
