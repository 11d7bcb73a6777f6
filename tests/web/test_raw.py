"""`/v1/audio/duplex` over real sockets."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import numpy as np
import pytest

from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine

FRAME = 1_920


class RawCaller:
    def __init__(self, socket):
        self.socket = socket
        self.seen = []

    async def tell(self, kind, **fields):
        await self.socket.send_json({"type": kind, **fields})

    async def until(self, kind):
        """The next message of this kind: "pcm" or a JSON type. Fails when the socket closes."""
        while True:
            message = await self.socket.receive(timeout=20)
            if message.type is aiohttp.WSMsgType.BINARY:
                self.seen.append({"type": "pcm", "pcm": np.frombuffer(message.data, "<f4")})
            else:
                assert message.type is aiohttp.WSMsgType.TEXT, (message, self.seen[-3:])
                self.seen.append(json.loads(message.data))
            if self.seen[-1]["type"] == kind:
                return self.seen[-1]

    async def converse(self, frames, seed=0):
        pcm = np.random.default_rng(seed).uniform(-0.5, 0.5, (frames, FRAME)).astype("<f4")
        for frame in pcm:
            await self.socket.send_bytes(frame.tobytes())
        for frame in pcm:
            assert np.array_equal((await self.until("pcm"))["pcm"], frame)

    async def close_code(self):
        message = await self.socket.receive(timeout=20)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
        return self.socket.close_code


@pytest.fixture
def dial():
    @asynccontextmanager
    async def connect(server):
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(server.address + "/v1/audio/duplex") as socket,
        ):
            yield RawCaller(socket)

    return connect


async def test_a_conversation_from_open_to_done(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        await caller.tell("open", persona="Be kind.", sample_rate=24_000)
        ready = await caller.until("ready")
        assert (ready["sample_rate"], ready["frame_size"]) == (24_000, FRAME)
        assert ready["substitutions"][0]["field"] == "persona"
        await caller.converse(5)
        await caller.socket.send_bytes(np.ones(100, "<f4").tobytes())
        await caller.tell("close")
        await caller.until("done")
        tail = caller.seen[-2]["pcm"]
        assert np.array_equal(tail, np.r_[np.ones(100), np.zeros(FRAME - 100)])
        assert await caller.close_code() == 1000
        assert "error" not in [message["type"] for message in caller.seen]
        stats = await server.runtime.engine.stats()
        assert stats.free + stats.draining == 2


async def test_nothing_is_lost_that_comes_before_ready(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        await caller.tell("open")
        await caller.converse(3)
        assert caller.seen[0]["type"] == "ready"


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
async def test_input_at_other_rates(start_server, dial, rate):
    async with start_server() as server, dial(server) as caller:
        await caller.tell("open", sample_rate=rate)
        second = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype("<f4") / 2
        for start in range(0, rate, 777):
            await caller.socket.send_bytes(second[start : start + 777].tobytes())
        await caller.tell("close")
        await caller.until("done")
        frames = [message["pcm"] for message in caller.seen if message["type"] == "pcm"]
        assert {len(frame) for frame in frames} == {FRAME}
        assert len(frames) == -(-24_000 // FRAME)
        heard = np.concatenate(frames)[2_000:20_000]
        wanted = np.sin(2 * np.pi * 440 * np.arange(2_000, 20_000) / 24_000) / 2
        assert np.abs(heard - wanted).max() < 0.02


class Talker(EchoModel):
    """Says a number with every frame."""

    def step(self, rows, pcm):
        heard = super().step(rows, pcm)
        return msgspec.structs.replace(heard, text=(" one",) * len(rows))


async def test_text_comes_with_its_frame(start_server, dial):
    engine = InProcessEngine(lambda: Talker(1), EngineConfig(model="echo"))
    async with start_server(engine=engine) as server, dial(server) as caller:
        await caller.tell("open")
        await caller.converse(2)
        kinds = [message["type"] for message in caller.seen]
        assert kinds == ["ready", "text", "pcm", "text", "pcm"]
        assert caller.seen[1]["text"] == " one"


async def test_errors_say_what_and_are_survived(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        for data, code, param in (
            (b"\0" * 4, "not_open", None),
            ("{", "invalid_json", None),
            ('{"type": "opn"}', "unknown_event", "type"),
            ('{"type": "open", "sample_rate": 96000}', "unsupported_audio_format", "sample_rate"),
        ):
            send = caller.socket.send_bytes if isinstance(data, bytes) else caller.socket.send_str
            await send(data)
            error = await caller.until("error")
            assert (error["code"], error.get("param")) == (code, param)
            assert error["message"]
        await caller.tell("open")
        await caller.until("ready")
        for bad in (b"\0" * 7, np.full(8, np.nan, "<f4").tobytes()):
            await caller.socket.send_bytes(bad)
            assert (await caller.until("error"))["code"] == "bad_audio"
        await caller.converse(2)


async def test_full_is_an_explicit_refusal(start_server, dial):
    async with start_server(max_sessions=1) as server, dial(server) as first:
        await first.tell("open")
        await first.until("ready")
        async with dial(server) as second:
            await second.tell("open")
            assert (await second.until("error"))["code"] == "resource_exhausted"
            assert await second.close_code() == 1013
        await first.converse(1)


async def test_a_draining_server_refuses(start_server, dial):
    async with start_server() as server:
        server.runtime.draining = True
        async with dial(server) as caller:
            assert (await caller.until("error"))["code"] == "resource_exhausted"
            assert await caller.close_code() == 1013


async def test_who_leaves_without_a_word_gives_the_slot_back(start_server, dial):
    async with start_server(max_sessions=1) as server:
        for number in range(5):
            async with dial(server) as caller:
                await caller.tell("open")
                await caller.converse(1, number)
                caller.socket._response.connection.transport.abort()
            while server.runtime.sessions:
                await asyncio.sleep(0)
        stats = await server.runtime.engine.stats()
        assert stats.free + stats.draining == 1
