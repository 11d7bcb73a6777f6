"""One WebSocket and its session: a task that reads, a task that writes, and the end they share.

The reader parses messages and hands commands to the session one by one; while the session has no
room it does not read, and TCP passes that on to the client. The writer takes events from the
session's outbox and drops nothing itself. Whichever ends first ends the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from struct import pack
from typing import Literal, Protocol

from aiohttp import ClientConnectionError, WSCloseCode, WSMsgType

from duplex.commands import AckEvent, AppendAudio, Command
from duplex.errors import SessionError, internal_error
from duplex.events import Event, OutputAudio, SessionClosed
from duplex.session import Session
from duplex.wire.close_codes import close_code
from duplex.wire.frames import Binary
from web.context import Context
from web.limits import ControlLimit, WriteDeadline
from web.websocket import CLOSE_S, Socket

logger = logging.getLogger(__name__)


class Wire(Protocol):
    """A wire protocol: messages to commands, events to messages."""

    def parse(self, data: bytes, *, binary: bool) -> Command | None:
        """What a message asks for, if anything. Raises SessionError."""
        ...

    def render(self, event: Event) -> Sequence[bytes]:
        """The messages that tell of an event; `Binary` ones go in binary frames."""
        ...


class Connection:
    """Carries one session over one WebSocket until either ends.

    With `autostart` the session is announced at once, else when it has its slot.
    """

    def __init__(
        self,
        context: Context,
        socket: Socket,
        transport: asyncio.Transport,
        session: Session,
        wire: Wire,
        *,
        autostart: bool,
    ) -> None:
        self._counters = context.counters
        self._clock = context.runtime.clock
        self._socket = socket
        self._transport = transport
        self._session = session
        self._wire = wire
        self._autostart = autostart
        self._close_code: int | None = None
        self._leaving = False
        config, now = context.config, self._clock.now()
        self._control = ControlLimit(config.control_rate, now)
        self._deadline = WriteDeadline(config.write_timeout_s, self._stalled)

    async def run(self) -> None:
        """Returns when the socket is closed and the session is over."""
        name = self._session.id
        self._begin()
        self._reader = asyncio.create_task(self._read(), name=f"read-{name}")
        writer = asyncio.create_task(self._write(), name=f"write-{name}")
        try:
            await asyncio.wait({self._reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            self._leaving = True
            await cancel(self._reader)
            self._blame(self._reader)
            await self._end(writer)
            self._blame(writer)
            await self._close()
        finally:
            self._deadline.cancel()
            await asyncio.gather(cancel(self._reader), cancel(writer))
            await self._leave()

    def _begin(self) -> None:
        self._serve(self._session)
        if self._autostart:
            self._session.start()

    def _serve(self, session: Session) -> None:
        """This socket is the session's now."""
        session.on_broken = self._transport.abort
        session.outbox.express = self._express
        session.rate_limits = lambda: self._control.left(self._clock.now())

    async def _end(self, writer: asyncio.Task[None]) -> None:
        """Either side is done: ends the session, and lets the writer say so."""
        await self._session.close("disconnected")
        await asyncio.wait({writer})

    async def _leave(self) -> None:
        """Whatever has happened, the session is over."""
        await self._session.close("disconnected")

    async def _obey(self, command: Command) -> None:
        """Carries out a command that was admitted."""
        await self._session.handle(command)

    async def _next(self) -> Event | None:
        """The next event to tell the client of; None at the end."""
        return await self._session.outbox.get()

    async def _tell(self, event: Event) -> None:
        """Sends the messages that tell of an event."""
        await self._send(self._render(event))

    def _render(self, event: Event) -> Sequence[bytes]:
        return self._wire.render(event)

    def _express(self, event: OutputAudio) -> bool:
        """Writes a frame at once, if nothing waits before it and the socket takes it."""
        transport = self._transport
        if self._leaving or transport.is_closing() or transport.get_write_buffer_size():
            return False
        for message in self._render(event):
            transport.write(header(message) + message)
            self._counters.messages_out += 1
            self._counters.bytes_out += len(message)
        return True

    async def _read(self) -> None:
        """Carries out the client's messages until it leaves."""
        receive, counters = self._socket.receive, self._counters
        while True:
            message = await receive()
            if message.type is not WSMsgType.TEXT and message.type is not WSMsgType.BINARY:
                return
            counters.messages_in += 1
            counters.bytes_in += len(message.data)
            try:
                command = self._admit(message.data, binary=message.type is WSMsgType.BINARY)
            except SessionError as error:
                if error.fatal:
                    self._close_code = WSCloseCode.POLICY_VIOLATION
                    self._session.abort(error, error.code)
                    return
                self._session.fail(error)
                continue
            if command is not None:
                await self._obey(command)

    def _admit(self, data: bytes, *, binary: bool) -> Command | None:
        """Reads a message. Raises SessionError for a bad one, or one too many."""
        now = self._clock.now()
        try:
            command = self._wire.parse(data, binary=binary)
        except SessionError as error:
            if not error.fatal:
                self._control.check(error.event_id, now)
            raise
        if command is None or type(command) is AppendAudio or type(command) is AckEvent:
            return command
        self._control.check(command.event_id, now)
        return command

    async def _write(self) -> None:
        """Sends the session's events until there are no more, or nobody to take them."""
        try:
            while (event := await self._next()) is not None:
                await self._tell(event)
                if type(event) is SessionClosed and self._close_code is None:
                    self._close_code = close_code(event.reason)
        except (ClientConnectionError, ConnectionError):
            return  # the client is gone, and the reader's end says the rest

    async def _send(self, messages: Sequence[bytes]) -> None:
        counters, deadline, send = self._counters, self._deadline, self._socket.send_frame
        for message in messages:
            deadline.begin()
            await send(message, frame_type(message))
            counters.messages_out += 1
            counters.bytes_out += len(message)
        deadline.end()

    def _blame(self, task: asyncio.Task[None]) -> None:
        """A failure of our own ends the session, is logged, and is told without its details."""
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            logger.error("session %s: %s failed", self._session.id, task.get_name(), exc_info=error)
            self._session.abort(internal_error(), "internal_error")

    def _stalled(self) -> None:
        self._counters.stalled_writes += 1
        self._session.count_slow_reader()
        self._transport.abort()

    async def _close(self) -> None:
        """Closes the socket politely; a client that doesn't take part is cut off."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._socket.close(code=self._close_code or WSCloseCode.OK)
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # else what it doesn't take would wait for minutes


def frame_type(message: bytes) -> Literal[WSMsgType.TEXT, WSMsgType.BINARY]:
    """The frame that a message goes in."""
    return WSMsgType.BINARY if type(message) is Binary else WSMsgType.TEXT


def header(message: bytes) -> bytes:
    """The head of a server's whole, uncompressed frame (RFC 6455, 5.2)."""
    first, length = 0x80 | frame_type(message), len(message)
    if length < 126:
        return pack("!BB", first, length)
    if length < 1 << 16:
        return pack("!BBH", first, 126, length)
    return pack("!BBQ", first, 127, length)


async def cancel(task: asyncio.Task[None]) -> None:
    """Ends a task, without its exception."""
    task.cancel()
    await asyncio.wait({task})
