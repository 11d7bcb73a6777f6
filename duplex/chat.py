"""Chat, whatever protocol asks for it: admission, and errors with codes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from duplex.errors import SessionError
from engine.api import (
    BadParams,
    Engine,
    EngineError,
    EngineLost,
    EngineUnavailable,
    NotServed,
    Request,
    TooManyRequests,
)
from engine.stages.values import ChatRequest, Finished, RequestOutput


class Chat:
    """The chat of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0
        """Requests that are admitted and whose caller is still there."""
        self.admitted = 0
        self.errors: Counter[str] = Counter()
        """Requests that were refused or failed, by code."""

    @asynccontextmanager
    async def answer(self, request: ChatRequest) -> AsyncIterator[Request]:
        """Admits a request for as long as the context lasts: who leaves it, aborts.

        Raises SessionError with a code, also in place of an EngineError of the reading.
        """
        try:
            if self._draining:
                raise EngineUnavailable("this server is shutting down")
            admitted = self._engine.submit(request)
        except EngineError as error:
            raise self.failed(error) from error
        self.admitted += 1
        self.active += 1
        self._idle.clear()
        try:
            yield admitted
        except EngineError as error:
            raise self.failed(error) from error
        finally:
            admitted.abort()
            self.active -= 1
            if not self.active:
                self._idle.set()

    def drain(self) -> None:
        """Refuses new requests."""
        self._draining = True

    async def idle(self) -> None:
        """Waits until no request is under way."""
        await self._idle.wait()

    def failed(self, error: EngineError) -> SessionError:
        """Counts a request that can't be finished; returns what its caller is told."""
        told = _told(error)
        self.errors[told.code] += 1
        return told


async def merged(answers: Sequence[Request]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """What comes of any of them, with the place of the one that it comes from.

    Raises the first EngineError; is cancelled if one is aborted by someone else.
    """
    reading = {_read(answer): place for place, answer in enumerate(answers)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = reading.pop(task)
                output = task.result()
                if output is None:
                    raise asyncio.CancelledError
                yield place, output
                if not isinstance(output, Finished):
                    reading[_read(answers[place])] = place
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


def _read(answer: Request) -> asyncio.Task[RequestOutput | None]:
    async def read() -> RequestOutput | None:
        return await anext(answer.__aiter__(), None)

    return asyncio.create_task(read())


def _told(error: EngineError) -> SessionError:
    match error:
        case NotServed():
            return SessionError("not_served", str(error))
        case TooManyRequests():
            return SessionError("resource_exhausted", f"{error}.", type="rate_limit_error")
        case BadParams():
            return SessionError("invalid_value", str(error), param=error.field or None)
        case EngineUnavailable():
            return SessionError(
                "engine_unavailable",
                f"The request can't be answered: {error}.",
                type="server_error",
            )
        case EngineLost():
            return SessionError(
                "engine_unavailable",
                "The model that was answering is gone, and starts again.",
                type="server_error",
            )
        case _:
            return SessionError("internal_error", "The model couldn't answer.", type="server_error")
