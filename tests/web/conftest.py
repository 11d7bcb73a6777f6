"""A caller that speaks the realtime protocol with nothing of ours: JSON over a WebSocket."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest

FRAME = 1_920


class Caller:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, **fields})

    async def append(self, pcm: np.ndarray) -> None:
        audio = base64.b64encode(pcm.astype("<f4").tobytes()).decode()
        await self.send("input_audio_buffer.append", audio=audio, format="pcm_f32le")

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this kind; fails when the socket closes before."""
        while True:
            message = await self.socket.receive(timeout=20)
            assert message.type is aiohttp.WSMsgType.TEXT, (message, self.seen[-3:])
            self.seen.append(message.json())
            if self.seen[-1]["type"] == kind:
                return self.seen[-1]

    async def close_code(self) -> int | None:
        """Reads until the server has closed, and says with what."""
        while True:
            message = await self.socket.receive(timeout=20)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return self.socket.close_code
            self.seen.append(message.json())

    async def configure(self, **session: Any) -> None:
        await self.send("session.update", session={"output_audio_format": "pcm_f32le"} | session)
        await self.until("session.updated")

    async def converse(self, frames: int, seed: int = 0) -> None:
        """Speaks and hears the same, sample by sample."""
        pcm = np.random.default_rng(seed).uniform(-0.5, 0.5, (frames, FRAME)).astype("<f4")
        for frame in pcm:
            await self.append(frame)
        for frame in pcm:
            delta = await self.until("response.output_audio.delta")
            assert base64.b64decode(delta["delta"]) == frame.tobytes()


Call = Callable[..., AbstractAsyncContextManager[Caller]]


@pytest.fixture
def call() -> Call:
    """`async with call(server) as caller`: connected."""

    @asynccontextmanager
    async def connect(
        server: Any, path: str = "/v1/realtime?duplex=1", **options: Any
    ) -> AsyncIterator[Caller]:
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(server.address + path, max_msg_size=0, **options) as socket:
                yield Caller(socket)
            # Of a peer that died without a word aiohttp would leave the connection open.
            socket._response.close()

    return connect
