"""Chat, whatever protocol asks for it: admission, and errors with codes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
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
from engine.stages.values import ChatRequest


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


def _told(error: EngineError) -> SessionError:
    match error:
        case NotServed():
            return SessionError("not_served", str(error))
        case TooManyRequests():
            return SessionError("resource_exhausted", f"{error}.", type="rate_limit_error")
        case BadParams():
            return SessionError("invalid_value", str(error), param=error.field)
        case EngineUnavailable():
            return SessionError(
                "engine_unavailable",
                f"The request can't be answered: {error}.",
                type="server_error",
            )
        case EngineLost():
            return SessionError(
                "internal_error", "The model that answered is gone.", type="server_error"
            )
        case _:
            return SessionError("internal_error", "The model couldn't answer.", type="server_error")
