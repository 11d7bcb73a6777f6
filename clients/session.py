"""A full-duplex session from the client's side.

    async with connect("ws://127.0.0.1:8091", persona="You are brief.") as session:
        await session.send_audio(pcm)
        async for event in session:
            ...

The wire is `/v1/realtime?duplex=1`: OpenAI's Realtime events with the full-duplex extensions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Self

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from clients.errors import BadEvent, ClientError, ConnectionLost, Refused, Unauthorized, Unreachable
from clients.events import (
    Event,
    EventReader,
    ServerError,
    SessionClosed,
    SessionCreated,
    SessionUpdated,
)
from clients.options import (
    SessionOptions,
    append_message,
    input_rate,
    is_loopback,
    output_rate,
    realtime_url,
    session_update,
)
from media.formats import AudioFormat, Pcm

_MAX_MESSAGE = 1 << 24
_MESSAGE_SAMPLES = 1 << 20
"""Samples of one message at most: servers limit its size."""


class RealtimeSession:
    """One session that is open. Made by `connect`.

    One task may send while another iterates. What the session says is lost unless it is read:
    iterate it, or `close` it, which reads what is left.
    """

    def __init__(
        self,
        socket: ClientConnection,
        options: SessionOptions,
        reader: EventReader,
        created: SessionCreated,
        updated: SessionUpdated,
    ) -> None:
        self.id = created.session_id
        self.capabilities = _mapping(created.session.get("capabilities"))
        """What the model and the server can do, as the server says."""
        self.settings = updated.session
        """The session object in force when the session was opened."""
        self.input_format = options.input_format
        self.input_rate = input_rate(options)
        self.closed: SessionClosed | None = None
        """How the session ended, once it has."""
        self._socket = socket
        self._reader = reader
        self._reading = asyncio.Lock()
        self._ending = False

    @property
    def frame_s(self) -> float:
        """Seconds of one frame of the model."""
        period = self.capabilities.get("chunk_period_ms")
        return period / 1000 if isinstance(period, int | float) and period > 0 else 0.08

    @property
    def frame_size(self) -> int:
        """Samples of one frame at the input's rate."""
        return round(self.frame_s * self.input_rate)

    async def send_audio(self, pcm: Pcm) -> None:
        """Sends samples [n], any number of them, at `input_rate`.

        Waits while the server doesn't take more, which it does no more than some seconds ahead of
        the answers that were read: of long recordings read the answers in another task. Raises
        ConnectionLost.
        """
        for start in range(0, len(pcm), _MESSAGE_SAMPLES):
            piece = pcm[start : start + _MESSAGE_SAMPLES]
            await self.send_message(append_message(self.input_format, piece))

    async def send(self, type: str, **fields: object) -> None:
        """Sends any client event. Raises ConnectionLost."""
        await self.send_message(msgspec.json.encode({"type": type, **fields}))

    async def send_message(self, message: bytes) -> None:
        """Sends a client event that is JSON already. Raises ConnectionLost."""
        try:
            await self._socket.send(message, text=True)
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def cancel_response(self) -> None:
        """Silences what the agent is saying; it goes on listening."""
        await self.send("response.cancel")

    async def end_input(self) -> None:
        """Says that no more audio comes: the rest is played out, then the session closes."""
        if not self._ending:
            self._ending = True
            await self.send("session.close")

    def __aiter__(self) -> Self:
        """Gives events as they come, SessionClosed the last."""
        return self

    async def __anext__(self) -> Event:
        """The next event. Raises ConnectionLost or BadEvent."""
        async with self._reading:
            if self.closed is not None:
                raise StopAsyncIteration
            return self.read(await self.receive())

    async def close(self, timeout_s: float = 10.0) -> SessionClosed | None:
        """Ends the session and the connection, in bounded time. Idempotent.

        Gives how the session ended, or None if the server didn't say so in time. Events that
        nobody has read by then are dropped: to have them, `end_input` and iterate to the end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self.closed is None:
                    with suppress(ConnectionLost):  # what came before it may still be read
                        await self.end_input()
                async for _ in self:
                    pass
        except (TimeoutError, ConnectionLost, BadEvent):
            return None
        finally:
            await self._socket.close()
        return self.closed

    async def receive(self) -> bytes:
        """The next message as it is on the wire, in place of iteration. Raises ConnectionLost."""
        try:
            return await self._socket.recv(decode=False)
        except ConnectionClosed as error:
            raise _lost(error) from error

    def read(self, message: bytes) -> Event:
        """What a message says. Raises BadEvent."""
        event = self._reader.read(message, time.monotonic())
        if type(event) is SessionClosed:
            self.closed = event
        return event


@asynccontextmanager
async def connect(
    url: str = SessionOptions().url,
    *,
    api_key: str | None = None,
    model: str | None = None,
    persona: str | None = None,
    voice: str | None = None,
    seed: int | None = None,
    greedy: bool = False,
    input_format: AudioFormat = AudioFormat.PCM_F32LE,
    output_format: AudioFormat = AudioFormat.PCM_F32LE,
    input_rate: int | None = None,
    dialect: str = "ga",
) -> AsyncIterator[RealtimeSession]:
    """Opens a session, and closes it at the end. The arguments are those of `SessionOptions`.

    Raises what `open_session` raises.
    """
    options = SessionOptions(
        url=url,
        api_key=api_key,
        model=model,
        persona=persona,
        voice=voice,
        seed=seed,
        greedy=greedy,
        input_format=input_format,
        output_format=output_format,
        input_rate=input_rate,
        dialect=dialect,
    )
    session = await open_session(options)
    try:
        yield session
    finally:
        await session.close()


async def open_session(options: SessionOptions) -> RealtimeSession:
    """Connects, takes a slot and returns when the model is ready to listen.

    Raises Unreachable, Unauthorized, Refused (`resource_exhausted` when the server is full),
    ConnectionLost or BadEvent.
    """
    if options.output_format is AudioFormat.WAV or options.input_format is AudioFormat.WAV:
        raise ClientError("a session's audio is pcm16, pcm_f32le, g711_ulaw or g711_alaw, not wav")
    reader = EventReader(options.output_format, output_rate(options.output_format))
    socket = await _connect(options)
    try:
        async with asyncio.timeout(options.open_timeout_s):
            return await _open(socket, options, reader)
    except TimeoutError:
        await socket.close()
        raise Unreachable(
            f"{options.url} opened no session within {options.open_timeout_s:g} s"
        ) from None
    except BaseException:
        await socket.close()
        raise


async def _connect(options: SessionOptions) -> ClientConnection:
    url = realtime_url(options)
    key = options.api_key
    try:
        return await websocket(
            url,
            additional_headers={"Authorization": f"Bearer {key}"} if key else None,
            compression=None,
            max_size=_MAX_MESSAGE,
            open_timeout=options.open_timeout_s,
            proxy=None if is_loopback(url) else True,
        )
    except InvalidStatus as error:
        raise _refusal(options.url, error) from error
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
        raise Unreachable(f"no server at {options.url}: {error or 'no answer'}") from error


def _refusal(url: str, error: InvalidStatus) -> ClientError:
    """An HTTP answer in place of the upgrade."""
    response = error.response
    body = response.body or b""
    code, message = f"http_{response.status_code}", response.reason_phrase
    try:
        answer = msgspec.json.decode(body, type=_HttpError).error
        code, message = answer.code or code, answer.message or message
    except msgspec.MsgspecError:
        message = body.decode(errors="replace").strip()[:200] or message
    if response.status_code in (401, 403):
        return Unauthorized(f"{url} refused the API key: {message}")
    return Refused(code, f"{url}: {message}")


class _HttpErrorBody(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _HttpError(msgspec.Struct):
    error: _HttpErrorBody


async def _open(
    socket: ClientConnection, options: SessionOptions, reader: EventReader
) -> RealtimeSession:
    created: SessionCreated | None = None
    try:
        await socket.send(session_update(options), text=True)
        while True:
            event = reader.read(await socket.recv(decode=False), time.monotonic())
            match event:
                case ServerError():
                    raise Refused(event.code, event.message, event.param)
                case SessionClosed():
                    raise Refused(event.reason, "the server closed the session")
                case SessionCreated():
                    created = event
                case SessionUpdated() if created is not None:
                    return RealtimeSession(socket, options, reader, created, event)
    except ConnectionClosed as error:
        raise _lost(error) from error


def _lost(error: ConnectionClosed) -> ConnectionLost:
    close = error.rcvd or error.sent
    return ConnectionLost(close.code, close.reason) if close else ConnectionLost(1006, "")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
