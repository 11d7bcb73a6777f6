"""An engine in another process, seen from the event loop: one socket and two rings.

Frames cross by the rings in shared memory (`engine.shm`), all else by the socket
(`engine.channel`). Importing this module loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

from engine.api import EngineError, EngineSpec, Frame, StepOutput, Timings
from engine.channel import Failed, Fed, Loaded, Stepped, pack, up
from engine.messages import Event, Order, Outputs
from engine.shm import Ring, create_memory


class ChannelLink(asyncio.Protocol):
    """Implements `engine.supervisor.Link` over a connected socket."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        loop = asyncio.get_running_loop()
        self._take = take
        self._unpacker = up()
        self._transport: asyncio.Transport
        self._rings: tuple[Ring, Ring] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._last_words = ""
        self.loaded: asyncio.Future[EngineSpec] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()

    @property
    def spec(self) -> EngineSpec:
        """What it serves, once it has loaded."""
        return self.loaded.result()

    def send(self, command: Order) -> None:
        """Tells the engine; in vain if it is gone."""
        if not self._transport.is_closing():
            self._transport.write(pack(command))

    def feed(self, frames: Sequence[Frame], arrived: float) -> None:
        """Hands frames over; in vain if the engine is gone."""
        if self._rings is not None and not self._transport.is_closing():
            batch = self._rings[0].write(
                [(frame.lease, frame.epoch, frame.index, 0, 0) for frame in frames],
                [frame.pcm for frame in frames],
            )
            video = [frame.video for frame in frames]
            self._transport.write(pack(Fed(batch, arrived, video if any(video) else [])))

    def abort(self, reason: str) -> None:
        """Gives the engine up: `lost` follows."""
        self._last_words = reason
        self._transport.abort()

    async def stop(self) -> None:
        """Hangs up; idempotent, bounded in time."""
        self._transport.abort()
        await asyncio.shield(self.lost)

    async def connect(self, connected: socket.socket) -> None:
        """Takes a connected socket over."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=connected)

    async def until_loaded(self, memory: tuple[int, int]) -> None:
        """Returns when the engine is there, which has given the rings' memory its size.

        Raises EngineError if it ends before.
        """
        either: list[asyncio.Future[Any]] = [self.loaded, self.lost]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self.loaded.done():
            raise EngineError(self.lost.result())
        self._rings = Ring(memory[0], self.spec), Ring(memory[1], self.spec)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is taken over."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The engine says something."""
        for message in self._unpacker.push(data):
            match message:
                case Stepped():
                    self._take(Outputs(self._outputs_of(message)))
                case Loaded(spec=spec):
                    self.loaded.set_result(spec)
                case Failed(message=words):
                    self._last_words = words
                case _:
                    self._take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine is gone, or was given up."""
        self._ending = asyncio.create_task(self._end())

    async def how_it_ended(self) -> str:
        """Sees the other side off; says how it went, in words."""
        return "it has hung up"

    def _outputs_of(self, step: Stepped) -> list[StepOutput]:
        assert self._rings is not None
        fields, pcm = self._rings[1].read(step.batch)
        timings = Timings(step.step_s, step.rows)
        outputs = [
            StepOutput(lease, epoch, index, sound if heard else None, text, wait_ns * 1e-9, timings)
            for (lease, epoch, index, heard, wait_ns), sound, text in zip(
                fields, pcm, step.text or [""] * len(fields), strict=True
            )
        ]
        outputs += [
            StepOutput(e.lease, e.epoch, e.index, None, "", 0.0, timings, e.error)
            for e in step.ended
        ]
        return outputs

    async def _end(self) -> None:
        how = await self.how_it_ended()
        if self._rings is not None:
            for ring in self._rings:
                ring.close()
        self.lost.set_result(self._last_words or how)


def ring_memory(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Memory of the rings down and up; ours is closed with the stack."""
    first, second = create_memory(), create_memory()
    stack.callback(os.close, first)
    stack.callback(os.close, second)
    return first, second
