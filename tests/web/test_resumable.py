"""Sessions that lose their sockets, over real ones."""

import asyncio
import base64
import json
import random
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest

FRAME = 1_920


class Client:
    """A client that keeps the number of the last event it has, and its token."""

    def __init__(self, server, http):
        self.url = f"{server.address}/v1/realtime?duplex=1&autostart=0"
        self.http = http
        self.seqs = []
        self.audio = []
        self.session = None
        self.token = None
        self.kinds = []

    async def connect(self):
        self.socket = await self.http.ws_connect(self.url, max_msg_size=0)

    async def send(self, kind, **fields):
        await self.socket.send_json({"type": kind, **fields})

    async def receive(self):
        """The next event; None when the socket is closed."""
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        event = json.loads(message.data)
        self.kinds.append(event["type"])
        if "server_event_seq" in event:
            self.seqs.append(event["server_event_seq"])
        if "resume_token" in event:
            self.session, self.token = event["session_id"], event["resume_token"]
        if event["type"] == "response.output_audio.delta":
            self.audio.append(np.frombuffer(base64.b64decode(event["delta"]), "<f4"))
        return event

    async def until(self, kind):
        async with asyncio.timeout(20):
            while (event := await self.receive()) is not None:
                if event["type"] == kind:
                    return event
        pytest.fail(f"no {kind} in {self.kinds}")

    async def begin(self):
        await self.connect()
        formats = {"input_audio_format": "pcm_f32le", "output_audio_format": "pcm_f32le"}
        await self.send("session.update", session=formats)
        await self.until("session.updated")

    async def append(self, pcm):
        await self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    async def glance(self, most):
        """Reads so many events at most, of those that are there."""
        for _ in range(most):
            try:
                async with asyncio.timeout(0.002):
                    await self.receive()
            except TimeoutError:
                break

    def cut(self):
        """Breaks the connection without a goodbye."""
        self.socket._response.connection.transport.abort()

    async def resume(self, last=None, token=None):
        await self.connect()
        await self.send(
            "session.resume",
            session_id=self.session,
            resume_token=token or self.token,
            last_received_server_event_seq=(self.seqs or [0])[-1] if last is None else last,
        )
        return await self.receive()


@asynccontextmanager
async def client(server):
    async with aiohttp.ClientSession() as http:
        yield Client(server, http)


async def test_five_hundred_cuts_lose_and_double_nothing(start_server):
    chance = random.Random(1)
    sound = np.random.default_rng(1).uniform(-0.5, 0.5, FRAME * 500).astype(np.float32)
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        await caller.begin()
        for frame in sound.reshape(-1, FRAME):
            await caller.append(frame.tobytes())
            # Reads some of what comes, and is cut with the rest under way. Its own frame must
            # have arrived: what a client sends into a broken socket is the client's to repeat.
            await caller.send("session.heartbeat")
            await caller.until("session.heartbeat_ack")
            await caller.glance(chance.randrange(3))
            caller.cut()
            resumed = await caller.resume()
            assert resumed["type"] == "session.resumed"
        await caller.send("session.close")
        await caller.until("session.closed")
    assert caller.seqs == list(range(1, len(caller.seqs) + 1))
    assert np.array_equal(np.concatenate(caller.audio), sound)


async def test_a_client_repeats_what_the_server_has_not_taken(start_server):
    """Cut, or left for another socket, with frames under way in both directions and some that
    wait for the engine.
    """
    chance = random.Random(2)
    sound = np.random.default_rng(2).uniform(-0.5, 0.5, FRAME * 400).astype(np.float32)
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        await caller.begin()
        sent = cuts = 0
        while sent < len(sound):
            for _ in range(chance.randrange(1, 6)):
                piece = sound[sent : sent + chance.randrange(1, 36) * FRAME // 3]
                await caller.append(piece.tobytes())
                sent += len(piece)
            while len(caller.audio) < sent // FRAME - chance.randrange(20):  # no journal is endless
                await caller.receive()
            if chance.random() < 0.5:
                caller.cut()
            resumed = await caller.resume()
            assert resumed["type"] == "session.resumed", resumed
            sent, cuts = resumed["input_samples"], cuts + 1
        await caller.send("session.close")
        await caller.until("session.closed")
    assert cuts > 20
    assert caller.seqs == list(range(1, len(caller.seqs) + 1))
    assert np.array_equal(np.concatenate(caller.audio), sound)


async def test_a_token_is_used_once_and_the_older_socket_is_told(start_server):
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        await caller.begin()
        first_socket, first_token = caller.socket, caller.token
        resumed = await caller.resume()
        assert resumed["type"] == "session.resumed"
        assert "server_event_seq" not in resumed
        assert resumed["attachment_generation"] == 2
        assert resumed["resume_token"] == caller.token != first_token
        assert json.loads((await first_socket.receive()).data)["type"] == "session.replaced"
        assert (await first_socket.receive()).type is aiohttp.WSMsgType.CLOSE
        await caller.send("session.heartbeat")
        await caller.until("session.heartbeat_ack")
        refusal = await caller.resume(token=first_token)
        assert refusal["error"]["code"] == "invalid_resume_token"


async def test_a_socket_lost_before_its_token_arrives_costs_no_session(start_server):
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        await caller.begin()
        token, seqs = caller.token, list(caller.seqs)
        for generation in range(2, 5):
            resumed = await caller.resume(token=token)
            assert resumed["attachment_generation"] == generation
            latest = caller.token
            caller.cut()
            caller.seqs = list(seqs)  # nothing of it has arrived
        resumed = await caller.resume(token=latest)  # nor does the last one do harm
        assert resumed["attachment_generation"] == 5
        refusal = await caller.resume(token=token)
        assert refusal["error"]["code"] == "invalid_resume_token"
        refusal = await caller.resume(token=resumed["resume_token"][:-1] + "~")
        assert refusal["error"]["code"] == "invalid_resume_token"


@pytest.mark.parametrize("code", [1000, 1001])
async def test_a_polite_close_ends_the_session_at_once(start_server, code):
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        await caller.begin()
        await caller.socket.close(code=code)
        assert await server.runtime.drain(5)


async def test_a_lost_session_gives_its_slot_to_a_newcomer(start_server):
    async with (
        start_server(max_sessions=1, resume_grace_s=30) as server,
        client(server) as lost,
        client(server) as newcomer,
    ):
        await lost.begin()
        lost.cut()
        async with asyncio.timeout(5):
            while not server.runtime.resumption.held:
                await asyncio.sleep(0.01)
        await newcomer.begin()
        refusal = await lost.resume()
        assert refusal["error"]["code"] == "session_resume_expired"


async def test_metrics_tell_of_who_is_held(start_server):
    async with (
        start_server(resume_grace_s=30) as server,
        aiohttp.ClientSession() as http,
        http.ws_connect(server.address + "/v1/realtime?duplex=1") as socket,
    ):
        await socket.send_json({"type": "session.update", "session": {}})
        while (await socket.receive_json())["type"] != "session.updated":
            pass
        socket._response.connection.transport.abort()
        async with asyncio.timeout(10):
            while not server.runtime.resumption.held:
                await asyncio.sleep(0.01)
        text = await (await http.get(server.address + "/metrics")).text()
        assert "\nduplex_sessions_held 1.0" in text
        assert "\nduplex_slots_used 1.0" in text


async def test_without_resume_there_is_no_token(start_server):
    async with start_server() as server, client(server) as caller:
        await caller.begin()
        assert caller.token is None
        caller.session, caller.token = "sess_x", "x"
        refusal = await caller.resume()
        assert refusal["error"]["code"] == "unsupported_session_resume"


async def test_a_client_may_do_without(start_server):
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        caller.url += "&resume=0"
        await caller.begin()
        assert caller.token is None
        caller.cut()
        assert await server.runtime.drain(5)
        assert not server.runtime.resumption.held


async def test_a_resume_of_nothing(start_server):
    async with start_server(resume_grace_s=30) as server, client(server) as caller:
        caller.session, caller.token = "sess_x", "x"
        refusal = await caller.resume()
        assert refusal["error"]["code"] == "invalid_session_resume"
        await caller.begin()
        refused = await caller.send("session.resume", session_id="sess_x", resume_token="x")
        assert refused is None
        assert (await caller.until("error"))["error"]["code"] == "session_resume_conflict"
