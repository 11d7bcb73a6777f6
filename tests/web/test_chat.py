"""`/api/chat` over real sockets, spoken with nothing of ours: aiohttp and sphn."""

import asyncio
import io
from contextlib import asynccontextmanager

import aiohttp
import av
import numpy as np
import pytest
import sphn

import web.chat
from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine

FRAME = 1_920


class ChatCaller:
    def __init__(self, socket):
        self.socket = socket
        self.writer = sphn.OpusStreamWriter(24_000)
        self.reader = sphn.OpusStreamReader(24_000)
        self.seen = []

    async def receive(self):
        message = await self.socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.BINARY, (message, self.seen)
        self.seen.append(message.data)
        return message.data[0], message.data[1:]

    async def until(self, kind):
        while True:
            found, payload = await self.receive()
            if found == kind:
                return payload

    async def speak(self, pcm):
        await self.socket.send_bytes(b"\x01" + self.writer.append_pcm(pcm))

    async def hear(self, samples):
        """So many samples, and what they are."""
        chunks = []
        while sum(map(len, chunks)) < samples:
            chunks.append(self.reader.append_bytes(await self.until(1)))
        return np.concatenate(chunks)

    async def close_code(self):
        while True:
            message = await self.socket.receive(timeout=20)
            if message.type is not aiohttp.WSMsgType.BINARY:
                return self.socket.close_code
            self.seen.append(message.data)


@pytest.fixture
def dial():
    @asynccontextmanager
    async def connect(server, **query):
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(server.address + "/api/chat", params=query) as socket,
        ):
            yield ChatCaller(socket)

    return connect


def tone(frames):
    return (np.sin(np.arange(frames * FRAME) / 10) / 4).astype(np.float32)


async def freed(server):
    """Waits until every slot is free again; hangs, and so fails, if one leaks."""
    async with asyncio.timeout(10):
        while (stats := await server.runtime.engine.stats()).free < stats.slots:
            await asyncio.sleep(0)


async def test_a_conversation_from_handshake_to_hanging_up(start_server, dial):
    async with start_server() as server:
        async with dial(server) as caller:
            assert await caller.receive() == (0, b"")
            said = tone(20)
            for frame in said.reshape(-1, FRAME):
                await caller.speak(frame)
            heard = await caller.hear(20 * FRAME)
            assert len(heard) == 20 * FRAME
            assert np.sqrt(np.mean(heard[FRAME:] ** 2)) > 0.1
            assert {message[0] for message in caller.seen} == {0, 1}
        await freed(server)
        assert server.runtime.metrics.frames_in == 20


async def test_a_frame_is_answered_before_the_next_is_sent(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        await caller.until(0)
        for frame in tone(8).reshape(-1, FRAME):
            await caller.speak(frame)
            assert len(await caller.hear(FRAME)) == FRAME


class SlowToStart(EchoModel):
    """Its prefill goes on until it is told to stop: as a long prompt's does."""

    def __init__(self):
        super().__init__(1)
        self.begun = asyncio.Event()
        self.go = False

    def prefill(self, row, params):
        while not self.go:
            yield


@pytest.fixture
def slow():
    return SlowToStart()


def engine_of(model):
    return InProcessEngine(lambda: model, EngineConfig(model="echo"))


async def test_what_is_said_before_the_handshake_is_dropped_and_counted(start_server, dial, slow):
    async with start_server(engine=engine_of(slow)) as server:
        async with dial(server) as caller:
            for frame in tone(5).reshape(-1, FRAME):
                await caller.speak(frame)
            await caller.socket.send_bytes(b"\x06")
            while server_counters(server).messages_in < 6:
                await asyncio.sleep(0)
            assert caller.seen == []
            slow.go = True
            await caller.until(0)
            await caller.speak(tone(1))
            await caller.hear(FRAME)
            assert server.runtime.metrics.frames_in == 1
        await freed(server)
        while not server_counters(server).early_samples:
            await asyncio.sleep(0)
        assert server_counters(server).early_samples == 5 * FRAME
        async with aiohttp.ClientSession() as http:
            text = await (await http.get(server.address + "/metrics")).text()
        assert f"duplex_samples_early_total {float(5 * FRAME)}" in text


def server_counters(server):
    from web.context import CONTEXT

    return server._runner.app[CONTEXT].counters


async def test_who_hangs_up_before_the_handshake_leaves_nothing_behind(start_server, dial, slow):
    async with start_server(engine=engine_of(slow)) as server:
        async with dial(server) as caller:
            await caller.speak(tone(1))
            while server_counters(server).messages_in < 1:
                await asyncio.sleep(0)
        slow.go = True
        await freed(server)
        async with dial(server) as caller:
            await caller.until(0)


async def test_it_pings_while_there_is_nothing_to_say(start_server, dial, slow, monkeypatch):
    monkeypatch.setattr(web.chat, "PING_S", 0.02)
    async with start_server(engine=engine_of(slow)) as server, dial(server) as caller:
        asyncio.get_running_loop().call_later(0.1, setattr, slow, "go", True)
        assert await caller.receive() == (0, b"")
        assert [await caller.receive() for _ in range(3)] == [(6, b"")] * 3
        await caller.speak(tone(1))
        await caller.hear(FRAME)


def recorded(pcm):
    """Messages as a browser's recorder makes them: packets of 20 ms, two a page, a page each."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg", options={"page_duration": "40000"}) as out:
        stream = out.add_stream("libopus", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm[None], format="flt", layout="mono")
        frame.sample_rate = 24_000
        for piece in av.AudioResampler(format="flt", layout="mono", rate=48_000).resample(frame):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    pages = file.getvalue().split(b"OggS")[1:]
    return [b"\x01OggS" + page for page in pages]


async def test_a_browser_that_records_stops_and_records_again(start_server, dial):
    query = {"text_temperature": "0.7", "audio_topk": "250", "pad_mult": "0", "seed": "-1"}
    async with start_server() as server, dial(server, **query) as caller:
        await caller.until(0)
        await caller.socket.send_bytes(b"\x03\x00")
        for _ in range(2):
            for message in recorded(tone(10)):
                await caller.socket.send_bytes(message)
            heard = await caller.hear(10 * FRAME)
            assert np.sqrt(np.mean(heard[2 * FRAME :] ** 2)) > 0.1


async def test_full_is_an_explicit_refusal(start_server, dial):
    async with start_server() as server, dial(server) as first, dial(server) as second:
        await first.until(0)
        await second.until(0)
        async with dial(server) as third:
            assert "2 conversation slots" in (await third.until(5)).decode()
            assert await third.close_code() == 1013
        await first.socket.close()
        while len(server.runtime.sessions) > 1:
            await asyncio.sleep(0)
        async with dial(server) as third:
            await third.until(0)
            await third.speak(tone(1))
            await third.hear(FRAME)


async def test_draining_is_a_refusal_too_and_ends_with_1012(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        await caller.until(0)
        server.runtime.draining = True
        async with dial(server) as late:
            assert "shutting down" in (await late.until(5)).decode()
            assert await late.close_code() == 1013
        ending = asyncio.create_task(server.stop())
        assert await caller.close_code() == 1012
        await ending


@pytest.mark.parametrize(("name", "value"), [("seed", "x"), ("text_temperature", "9")])
async def test_bad_values_are_told_and_closed_with_1008(start_server, dial, name, value):
    async with start_server() as server:
        async with dial(server, **{name: value, "unknown": "thing"}) as caller:
            assert name in (await caller.until(5)).decode()
            assert await caller.close_code() == 1008
        assert server.runtime.sessions == {}


async def test_what_the_engine_refuses_is_closed_with_1008(start_server, dial):
    class Picky(EchoModel):
        def check(self, params):
            from engine.api import BadParams

            raise BadParams("persona", "persona has too many tokens")

    async with start_server(engine=engine_of(Picky(1))) as server, dial(server) as caller:
        assert await caller.until(5) == b"persona has too many tokens"
        assert await caller.close_code() == 1008


async def test_garbage_as_audio_ends_its_session_and_no_other(start_server, dial):
    async with start_server() as server, dial(server) as caller, dial(server) as other:
        await caller.until(0)
        await other.until(0)
        await caller.socket.send_bytes(b"\x01" + b"no ogg at all" * 10)
        assert "Ogg-Opus" in (await caller.until(5)).decode()
        assert await caller.close_code() == 1008
        await other.speak(tone(1))
        await other.hear(FRAME)


async def test_other_garbage_is_told_and_survived(start_server, dial):
    async with start_server() as server, dial(server) as caller:
        await caller.until(0)
        for data in (b"", b"\x02\xff", b"\x03", b"\x04{"):
            await caller.socket.send_bytes(data)
            assert await caller.until(5)
        await caller.socket.send_str("{}")
        assert "binary" in (await caller.until(5)).decode()
        for data in (
            b"\x00",
            b"\x03\x00",
            b"\x03\x01",
            b"\x03\x02",
            b"\x03\x03",
            b"\x04{}",
            b"\x63",
        ):
            await caller.socket.send_bytes(data)
        await caller.speak(tone(1))
        await caller.hear(FRAME)


async def test_a_plain_request_is_told_to_upgrade(start_server):
    async with start_server() as server, aiohttp.ClientSession() as http:
        assert (await http.get(server.address + "/api/chat")).status == 426
