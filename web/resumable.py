"""A connection whose session outlives it: held when the socket is lost, taken over by another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import ClientConnectionError, WSCloseCode

from duplex.commands import AckEvent, Command, ResumeSession
from duplex.errors import SessionError, internal_error
from duplex.events import Event, Failed
from duplex.resume import Attachment, ResyncRequired
from duplex.session import Session, State
from duplex.wire.realtime import RealtimeWire
from web.connection import Connection, cancel
from web.context import Context
from web.websocket import Socket
from web.workers.relay import relay
from web.workers.siblings import Siblings

logger = logging.getLogger(__name__)


class ResumableConnection(Connection):
    """Carries a session that `duplex.resume` knows, over one of its sockets."""

    def __init__(
        self,
        context: Context,
        socket: Socket,
        transport: asyncio.Transport,
        session: Session,
        wire: RealtimeWire,
        *,
        autostart: bool,
        attachment: Attachment | None = None,
    ) -> None:
        """`attachment`: of a session that comes here from another socket. None: of a new one."""
        super().__init__(context, socket, transport, session, wire, autostart=autostart)
        self._context = context
        self._resumption = context.runtime.resumption
        self._attachment = attachment or self._resumption.attach(session, wire)
        self._realtime = wire
        self._first: list[bytes] = []
        """What the client has to hear before anything else of a session that came here."""
        self._relaying = False
        """Whether the session is another process's, and its messages only pass here."""
        self._evicted = False
        self._free = asyncio.Event()
        """Set when another socket may have the session."""

    def _begin(self) -> None:
        self._take(self._attachment)
        super()._begin()

    def _take(self, attachment: Attachment) -> None:
        session = attachment.session
        self._serve(session)
        session.resume_token = attachment.take(self._evict)
        session.attachment_generation = attachment.generation

    async def _evict(self) -> None:
        """Another socket has come for the session."""
        self._evicted = True
        self._reader.cancel()
        await self._free.wait()

    async def _end(self, writer: asyncio.Task[None]) -> None:
        if self._relaying:
            await cancel(writer)
        elif self._evicted:
            await cancel(writer)
            self._free.set()
            with suppress(ClientConnectionError, ConnectionError):
                await self._send([self._realtime.replaced()])
        elif self._lost:
            await cancel(writer)
            self._resumption.hold(self._attachment)
        else:
            await super()._end(writer)
            self._resumption.detach(self._attachment)

    @property
    def _lost(self) -> bool:
        """Whether the socket broke, while the session could go on with another."""
        broken = self._socket.close_code in (None, WSCloseCode.ABNORMAL_CLOSURE)
        return broken and self._close_code is None and self._session.state is State.LIVE

    async def _leave(self) -> None:
        self._free.set()
        if self._attachment.evict == self._evict and not self._evicted:
            await super()._leave()
            self._resumption.detach(self._attachment)

    def _admit(self, data: bytes, *, binary: bool) -> Command | None:
        self._attachment.confirm()
        return super()._admit(data, binary=binary)

    async def _obey(self, command: Command) -> None:
        if type(command) is AckEvent:
            self._attachment.journal.ack(command.server_event_seq)
        elif type(command) is ResumeSession:
            await self._resume(command)
            return
        await super()._obey(command)

    async def _resume(self, command: ResumeSession) -> None:
        """Changes this socket's own unused session for the one that the client had."""
        own, siblings = self._attachment, self._context.siblings
        try:
            if own.session.opened:
                raise SessionError("session_resume_conflict", "This socket has a session already.")
            here = command.session_id in self._context.runtime.sessions
            if siblings and not here and (home := siblings.home_of_token(command.resume_token)):
                await self._relay(siblings, home, command)
                return
            attachment, missed = await self._resumption.resume(
                command.session_id, command.resume_token, command.last_received_server_event_seq
            )
        except SessionError as error:
            if siblings:
                error = await siblings.refusal(error, command.session_id)
            error.event_id = command.event_id
            own.session.fail(error)
            return
        except ResyncRequired as error:
            logger.info("session %s: %s", command.session_id, error)
            with suppress(ClientConnectionError, ConnectionError):
                await self._send([self._realtime.resync_required(command.session_id)])
            await own.session.close("resync_required")
            return
        self._take(attachment)
        self._attachment, self._session = attachment, attachment.session
        self._realtime = attachment.wire
        self._wire = attachment.wire
        self._first = [attachment.wire.resumed(attachment.session), *missed]
        self._resumption.detach(own)
        await own.session.close("superseded")

    async def _relay(self, siblings: Siblings, home: str, command: ResumeSession) -> None:
        """Passes messages between the client and its session in another process, until either
        ends. Raises as `Siblings.resume` does.
        """
        own = self._attachment
        async with siblings.resume(
            home,
            command.session_id,
            command.resume_token,
            command.last_received_server_event_seq,
        ) as theirs:
            self._relaying = True
            self._resumption.detach(own)
            await own.session.close("superseded")
            self._close_code = await relay(self._socket, theirs)
            if self._close_code is None and not self._socket.closed:
                lost = self._realtime.render(Failed(error=internal_error()))
                self._close_code = WSCloseCode.INTERNAL_ERROR
                with suppress(ClientConnectionError, ConnectionError):
                    await self._send(lost)
            self._reader.cancel()

    async def _next(self) -> Event | None:
        while True:
            first, self._first = self._first, []
            await self._send(first)
            session = self._session
            event = await session.outbox.get()
            if self._relaying:
                await asyncio.Future()  # the reader's end is the end
            if session is self._session:
                return event

    def _render(self, event: Event) -> Sequence[bytes]:
        return self._attachment.render(event)
