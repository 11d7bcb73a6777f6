"""The other processes of a worker's server, as the worker asks them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import aiohttp
import msgspec

from duplex.errors import SessionError
from duplex.resume import ResyncRequired, no_session, wrong_token
from duplex.settings import SettingsPatch, Substitution
from web.errors import ApiError, ErrorBody
from web.secrets import Secret
from web.workers.messages import (
    CLIENT_HEADER,
    HOME,
    HUB,
    FoundSecret,
    Home,
    NewSecret,
    Place,
    Resume,
    Resumed,
    SecretValue,
    Yes,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
RelaySocket = aiohttp.ClientWebSocketResponse[Literal[False]]

ANSWER_S: Final = 5.0
"""How long an answer may take: the others are on this machine, and compute nothing."""


class Siblings:
    """Asks the hub and the other workers; all of them listen in one folder."""

    def __init__(self, folder: Path, home: str) -> None:
        """`home` is the worker's own name."""
        self.home = home
        self._folder = folder
        self._hub: aiohttp.ClientSession | None = None
        self._forwarded = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def close(self) -> None:
        """Ends the connections; idempotent."""
        if self._hub is not None:
            await self._hub.close()

    async def drain(self, timeout_s: float) -> None:
        """Waits for what is passed on to the hub."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    @asynccontextmanager
    async def to_hub(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A connection to the hub for a request of a caller's, however long it takes."""
        self._forwarded += 1
        self._idle.clear()
        try:
            async with self._to(HUB) as http:
                yield http
        finally:
            self._forwarded -= 1
            if not self._forwarded:
                self._idle.set()

    def home_of_token(self, token: str) -> str | None:
        """Where the session of a resume token is, unless it is here."""
        return self._elsewhere(token.partition(".")[0])

    def home_of_call(self, call_id: str) -> str | None:
        """Where a call is, unless it is here."""
        return self._elsewhere(call_id.removeprefix("rtc_").partition("_")[0])

    async def have_session(self, session_id: str) -> bool:
        """Whether another worker has a session of this id."""
        asked = Place(self.home, session_id)
        return (await self.ask("/sessions", asked, Yes)).yes

    async def yield_slot(self) -> bool:
        """Has the session end that has been without its client for longest, whoever holds it;
        False if there is none.
        """
        return (await self.ask("/slots/yield", None, Yes)).yes

    async def metrics(self) -> bytes:
        """The metrics of all processes."""
        async with self._http().get("/metrics") as answer:
            return await answer.read()

    async def hang_up(self, home: str, call_id: str, client: str) -> None:
        """Ends another worker's call. Raises ApiError 404 if there is none."""
        url = f"/calls/{call_id}/hangup"
        try:
            async with (
                self._to(home) as http,
                http.post(url, headers={CLIENT_HEADER: client}) as answer,
            ):
                await _checked(answer)
        except aiohttp.ClientConnectionError as error:
            raise no_call(call_id) from error

    @asynccontextmanager
    async def resume(
        self, home: str, session_id: str, token: str, last_seq: int
    ) -> AsyncIterator[RelaySocket]:
        """A socket to another worker's session, whose messages follow on it.

        Raises SessionError if the session can't be resumed, ResyncRequired if it ended of that.
        If the context ends before the socket is closed, the session has lost its client.
        """
        async with self._to(home) as http:
            try:
                socket = await http.ws_connect("/resume", max_msg_size=0, decode_text=False)
            except aiohttp.ClientConnectionError as error:
                raise await self._unreachable(home) from error
            try:
                await _ask_for(socket, Resume(session_id, token, last_seq))
                yield socket
            finally:
                try:
                    await http.close()  # first: a goodbye that is heard would end the session
                finally:
                    await socket.close()

    async def refusal(self, error: SessionError, session_id: str) -> SessionError:
        """Why a session can't be resumed, as one process with all sessions would say it."""
        if error.code == "invalid_session_resume" and error.param == "session_id":
            with suppress(ApiError):  # the hub has gone, and all workers end
                if await self.have_session(session_id):
                    return wrong_token()
        return error

    async def _unreachable(self, home: str) -> SessionError:
        """Why there is no session in a home where nobody answers: anyone can make up its name."""
        with suppress(ApiError):  # the hub has gone, and all workers end
            if not (await self.ask("/homes", Home(home), Yes)).yes:
                return no_session()
        return expired()

    def _elsewhere(self, home: str) -> str | None:
        return home if home != self.home and HOME.fullmatch(home) else None

    async def ask(self, path: str, question: msgspec.Struct | None, answer_type: type[T]) -> T:
        """The hub's answer. Raises ApiError, as the hub does."""
        body = b"" if question is None else msgspec.json.encode(question)
        try:
            async with self._http().post(path, data=body) as answer:
                return msgspec.json.decode(await _checked(answer), type=answer_type)
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise ApiError(
                503, "internal_error", "The server ends.", type="server_error"
            ) from error

    def _http(self) -> aiohttp.ClientSession:
        if self._hub is None:
            self._hub = self._to(HUB, timeout_s=ANSWER_S)
        return self._hub

    def _to(self, name: str, timeout_s: float | None = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            "http://duplex",
            connector=aiohttp.UnixConnector(str(self._folder / name), limit=0),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )


class HubDesk:
    """Implements `web.desk.Desk` at the hub."""

    def __init__(self, siblings: Siblings) -> None:
        self.open = 0
        """Connections that this process has at the moment."""
        self._siblings = siblings
        self._tasks: set[asyncio.Task[None]] = set()

    async def hold(self, client: str) -> AbstractContextManager[None]:
        """A place for one connection of a client. Raises ApiError 429 if there is none."""
        place = Place(self._siblings.home, client)
        asking = asyncio.ensure_future(self._siblings.ask("/places", place, Yes))
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:  # who asked has left; what was granted is given back
            asking.add_done_callback(lambda done: self._unwanted(done, place))
            raise
        return self._held(place)

    async def make_secret(
        self,
        client: str,
        seconds: float,
        patch: SettingsPatch,
        substitutions: tuple[Substitution, ...],
    ) -> str:
        """A new client secret. Raises ApiError 429 if there are too many."""
        asked = NewSecret(client, seconds, patch, substitutions)
        return (await self._siblings.ask("/secrets", asked, SecretValue)).value

    async def find_secret(self, value: str) -> Secret | None:
        """What a secret stands for; None if it isn't one, or has expired."""
        asked = SecretValue(value)
        return (await self._siblings.ask("/secrets/find", asked, FoundSecret)).secret

    @contextmanager
    def _held(self, place: Place) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self._give_back(place)

    def _unwanted(self, asking: asyncio.Task[Yes], place: Place) -> None:
        if not asking.cancelled() and asking.exception() is None:
            self._give_back(place)

    def _give_back(self, place: Place) -> None:
        task = asyncio.create_task(self._tell(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, place: Place) -> None:
        with suppress(ApiError):  # the hub has gone, and all places with it
            await self._siblings.ask("/places/release", place, Yes)


def expired() -> SessionError:
    """The worker that had a session is no more."""
    return SessionError(
        "session_resume_expired",
        "The session is over: the process that held it has ended.",
        param="session_id",
    )


def no_call(call_id: str) -> ApiError:
    """There is no call of this id, or none of this client's."""
    return ApiError(404, "call_not_found", f"There is no call {call_id!r}.", param="call_id")


async def _ask_for(socket: RelaySocket, asked: Resume) -> None:
    """Returns when the session's messages follow. Raises as `Siblings.resume` does."""
    try:
        await socket.send_bytes(msgspec.json.encode(asked))
        answer = await socket.receive()
    except aiohttp.ClientConnectionError as error:
        raise expired() from error
    if answer.type is not aiohttp.WSMsgType.BINARY:
        raise expired()
    outcome = msgspec.json.decode(answer.data, type=Resumed)
    if (refusal := outcome.error) is not None:
        raise SessionError(refusal.code, refusal.message, param=refusal.param, type=refusal.type)
    if outcome.resync is not None:
        raise ResyncRequired(outcome.resync)


async def _checked(answer: aiohttp.ClientResponse) -> bytes:
    """The body of a good answer. Raises ApiError for another's."""
    body = await answer.read()
    if answer.status < 400:
        return body
    detail = msgspec.json.decode(body, type=ErrorBody).error
    raise ApiError(answer.status, detail.code, detail.message, type=detail.type, param=detail.param)
