"""A TCP relay that can be cut: the network between a client and its server."""

from __future__ import annotations

import asyncio
import enum
from contextlib import suppress


class Way(enum.Enum):
    """From the client to the server, or back."""

    UP = enum.auto()
    DOWN = enum.auto()


class TcpRelay:
    """`async with TcpRelay() as relay`: passes what comes to `relay.port` on to `relay.to`."""

    def __init__(self) -> None:
        self.port = 0
        self.to = 0
        self.refusing = False
        """Whether connections that come are cut at once."""
        self._goes = {way: _set() for way in Way}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> TcpRelay:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def freeze(self, way: Way) -> asyncio.Event:
        """Nothing comes this way through the connections that there are, as in a network that is
        away; until the event is set.
        """
        frozen, self._goes[way] = self._goes[way], _set()
        frozen.clear()
        return frozen

    async def _meet(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        if self.refusing:
            near_out.transport.abort()
            return
        far, far_out = await asyncio.open_connection("127.0.0.1", self.to)
        self._writers |= {near_out, far_out}
        for way, reader, writer in ((Way.UP, near, far_out), (Way.DOWN, far, near_out)):
            task = asyncio.create_task(self._pass(reader, writer, self._goes[way]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, goes: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await goes.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
