"""Notices that a caller hangs up while a handler works, before anything is written to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web


class _Watch(asyncio.Protocol):
    """Passes everything on to the connection's own protocol, and notes its loss."""

    def __init__(self, inner: asyncio.Protocol, task: asyncio.Task[object]) -> None:
        self._inner = inner
        self._task = task

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._task.cancel()


@contextmanager
def cancelled_with_caller(request: web.Request) -> Iterator[None]:
    """Cancels this task if the request's connection is lost within the context.

    aiohttp can do so for all handlers of a server or for none, and sockets must not be cut so.
    """
    transport = request.transport
    task = asyncio.current_task()
    if transport is None or transport.is_closing() or task is None:
        raise asyncio.CancelledError
    inner = cast(asyncio.Protocol, transport.get_protocol())
    transport.set_protocol(_Watch(inner, task))
    try:
        yield
    finally:
        transport.set_protocol(inner)
