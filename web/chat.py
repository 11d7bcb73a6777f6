"""`WS /api/chat`: Moshi's and PersonaPlex's clients."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import WSCloseCode, web

from duplex.commands import Command
from duplex.errors import SessionError
from duplex.events import Event, OutputAudio
from duplex.ids import new_id
from duplex.session import Session, State
from duplex.settings import Settings
from duplex.wire.chat import PING, ChatWire, read_query
from web.connection import Connection, cancel
from web.context import CLIENT, CONTEXT, Context
from web.sockets import refuse, upgrade
from web.websocket import Socket

PING_S: Final = 4.0
"""Browsers leave 10 s after the last message, from the handshake on."""


async def chat_socket(request: web.Request) -> web.StreamResponse:
    """A full-duplex session with what the query asks for; it has its slot at the handshake."""
    context = request.app[CONTEXT]
    runtime, spec = context.runtime, context.runtime.spec
    with await context.desk.hold(request[CLIENT]):
        socket, transport = await upgrade(request)
        if transport is None:
            return socket
        wire = ChatWire(spec)
        try:
            opening = read_query(request.query, spec)
            settings = Settings(idle_timeout_s=context.config.idle_timeout_s)
            session = runtime.create_session(new_id("sess"), settings)
        except SessionError as error:
            await refuse(context, socket, wire, error)
            return socket
        try:
            await ChatConnection(context, socket, transport, session, wire, opening=opening).run()
        finally:
            context.counters.early_samples += wire.early_samples
    return socket


class ChatConnection(Connection):
    """Takes the slot while it reads, so that nobody hears what was said before the handshake."""

    def __init__(
        self,
        context: Context,
        socket: Socket,
        transport: asyncio.Transport,
        session: Session,
        wire: ChatWire,
        *,
        opening: Command,
    ) -> None:
        super().__init__(context, socket, transport, session, wire, autostart=False)
        self._chat = wire
        self._opening = opening

    def _begin(self) -> None:
        super()._begin()
        self._opened = asyncio.create_task(self._open(), name=f"open-{self._session.id}")
        self._opened.add_done_callback(self._blame)

    async def _open(self) -> None:
        await self._session.handle(self._opening)
        if self._session.state is State.NEW:
            self._close_code = WSCloseCode.POLICY_VIOLATION
            await self._session.close("refused")

    async def _leave(self) -> None:
        await cancel(self._opened)
        await super()._leave()

    def _express(self, event: OutputAudio) -> bool:
        return False  # see `_tell`

    async def _next(self) -> Event | None:
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    return await super()._next()
            except TimeoutError:
                if self._chat.ready:  # there are clients that take the first message for it
                    await self._send([PING])

    async def _tell(self, event: Event) -> None:
        if type(event) is OutputAudio:  # Opus takes its time, which the event loop hasn't
            await self._send(await asyncio.to_thread(self._render, event))
        else:
            await super()._tell(event)
