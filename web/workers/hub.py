"""The hub's desk, as HTTP on a socket of its own: what workers ask for, and metrics of all."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from web.context import Context
from web.desk import LocalDesk
from web.errors import json_response
from web.exposition import CONTENT_TYPE, central_exposition, own_exposition
from web.operators import engine_stats
from web.workers.messages import (
    HUB,
    FoundSecret,
    Held,
    Home,
    NewSecret,
    Place,
    SecretValue,
    Yes,
)
from web.workers.metrics import merged

logger = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S: Final = 2.0
"""How long a worker may take to answer; one that hangs must not hold up the others."""


class Hub:
    """What is central, and who may ask for it."""

    def __init__(self, context: Context, desk: LocalDesk, folder: Path) -> None:
        """`folder`: of the sockets on which workers listen."""
        self.starts: list[int] = []
        """How often each worker was started."""
        self._context = context
        self._desk = desk
        self._folder = folder
        self._homes: dict[str, Counter[str]] = {}
        """The workers that live, each with the places of its clients."""
        self._known_homes: set[str] = set()
        """Those of all workers, the dead included."""

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """For an application that only workers can reach."""
        return (
            web.get("/metrics", self._metrics),
            web.post("/places", self._hold),
            web.post("/places/release", self._release),
            web.post("/secrets", self._make_secret),
            web.post("/secrets/find", self._find_secret),
            web.post("/sessions", self._have_session),
            web.post("/homes", self._know_home),
            web.post("/slots/yield", self._yield_slot),
        )

    def enter(self, home: str) -> None:
        """A worker lives."""
        self._homes[home] = Counter()
        self._known_homes.add(home)

    def leave(self, home: str) -> None:
        """It has ended: its places are free."""
        for client, count in self._homes.pop(home, Counter[str]()).items():
            for _ in range(count):
                self._desk.connections.release(client)

    def callers(self, home: str) -> int:
        """How many connections a worker has."""
        return self._homes[home].total()

    async def ask_all(
        self, ask: Callable[[str, aiohttp.ClientSession], Awaitable[T]], but: str | None = None
    ) -> dict[str, T]:
        """The answers of all workers, or of all but one, that answer in time."""
        homes = [home for home in self._homes if home != but]
        answers = await asyncio.gather(*(self._ask(home, ask) for home in homes))
        return {home: a for home, a in zip(homes, answers, strict=True) if a is not None}

    async def _ask(
        self, home: str, ask: Callable[[str, aiohttp.ClientSession], Awaitable[T]]
    ) -> T | None:
        async with aiohttp.ClientSession(
            "http://worker",
            connector=aiohttp.UnixConnector(str(self._folder / home)),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
        ) as http:
            try:
                return await ask(home, http)
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
                logger.warning("worker %s does not answer: %r", home, error)
                return None

    async def _metrics(self, _: web.Request) -> web.Response:
        async def own(_: str, http: aiohttp.ClientSession) -> bytes:
            async with http.get("/metrics") as answer:
                return await answer.read()

        told = await self.ask_all(own)
        starts = {str(number): count for number, count in enumerate(self.starts)}
        central = central_exposition(self._context, await engine_stats(self._context), starts)
        workers = {home.partition("-")[0]: text for home, text in told.items()}
        body = merged(central, workers | {HUB: own_exposition(self._context)})
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    # --- what workers ask -----------------------------------------------------------------------

    async def _hold(self, request: web.Request) -> web.Response:
        place = await _read(request, Place)
        self._desk.connections.take(place.client)
        if (places := self._homes.get(place.home)) is None:
            self._desk.connections.release(place.client)  # it has ended meanwhile
        else:
            places[place.client] += 1
        return json_response(Yes(True))

    async def _release(self, request: web.Request) -> web.Response:
        place = await _read(request, Place)
        places = self._homes.get(place.home)
        held = places is not None and places[place.client] > 0
        if places is not None and held:
            places[place.client] -= 1
            self._desk.connections.release(place.client)
        return json_response(Yes(held))

    async def _make_secret(self, request: web.Request) -> web.Response:
        asked = await _read(request, NewSecret)
        value = self._desk.secrets.make(
            asked.client, asked.seconds, asked.patch, asked.substitutions
        )
        return json_response(SecretValue(value))

    async def _find_secret(self, request: web.Request) -> web.Response:
        value = (await _read(request, SecretValue)).value
        return json_response(FoundSecret(self._desk.secrets.find(value)))

    async def _have_session(self, request: web.Request) -> web.Response:
        asked = await _read(request, Place)

        async def have(_: str, http: aiohttp.ClientSession) -> bool:
            async with http.get("/sessions", params={"id": asked.client}) as answer:
                return msgspec.json.decode(await answer.read(), type=Yes).yes

        return json_response(Yes(any((await self.ask_all(have, but=asked.home)).values())))

    async def _know_home(self, request: web.Request) -> web.Response:
        return json_response(Yes((await _read(request, Home)).name in self._known_homes))

    async def _yield_slot(self, _: web.Request) -> web.Response:
        """The session goes first that has been without its client for longest."""

        async def since(_: str, http: aiohttp.ClientSession) -> float | None:
            async with http.get("/held") as answer:
                return msgspec.json.decode(await answer.read(), type=Held).since

        held = await self.ask_all(since)
        for home in sorted(held, key=lambda home: held[home] or 0.0):

            async def let_go(_: str, http: aiohttp.ClientSession) -> bool:
                async with http.post("/slots/yield") as answer:
                    return msgspec.json.decode(await answer.read(), type=Yes).yes

            if await self._ask(home, let_go):
                return json_response(Yes(True))
        return json_response(Yes(False))


async def _read(request: web.Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.read(), type=kind)
