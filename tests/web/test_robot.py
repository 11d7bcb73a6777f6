"""Robots over real sockets, with nothing of ours in between but MessagePack."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed_ndarrays import MALFORMED

from duplex.robot.session import MAX_REQUEST_BYTES
from engine.api import EngineError
from media.ndarray_msgpack import packb, unpackb
from web.context import CONTEXT

KEY = "correct-horse-battery"
PATH = "/v1/realtime/robot/openpi"
POLICY = "tests.duplex.robot.policies:Policy"
INVALID = {"type": "error", "message": "Invalid request payload"}
UNAVAILABLE = {"type": "error", "error": "Robot policy not available", "code": "unsupported"}


class Robot:
    def __init__(self, socket):
        self.socket = socket

    async def receive(self):
        message = await self.socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return unpackb(message.data)

    async def ask(self, **observation):
        await self.socket.send_bytes(packb(observation))
        return await self.receive()

    async def send(self, data):
        await self.socket.send_bytes(data)
        return await self.receive()

    async def told(self):
        """The text it is told, and the code that its connection closes with."""
        message = await self.socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return message.data, await self.close_code()

    async def close_code(self):
        message = await self.socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return self.socket.close_code


@asynccontextmanager
async def connect(server, path=PATH, **options):
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(server.address + path, max_msg_size=0, **options) as socket,
    ):
        yield Robot(socket)


@asynccontextmanager
async def robot(server, path=PATH, **options):
    """A robot that has been told the metadata."""
    async with connect(server, path, **options) as one:
        assert "options" in await one.receive()
        yield one


def context(server):
    return server._runner.app[CONTEXT]


@pytest.mark.parametrize("path", [PATH, "/"])
async def test_an_observation_gets_actions(start_server, path):
    async with (
        start_server(policy=POLICY, policy_options={"horizon": 3}) as server,
        connect(server, path) as one,
    ):
        assert (await one.receive())["options"] == {"horizon": 3}
        first = await one.ask(x=2.0, image=np.zeros((64, 64, 3), np.uint8))
        assert first["actions"].tolist() == [[2, 2]] * 3
        assert first["reset"] is True
        assert set(first["policy_timing"]) == set(first["server_timing"]) == {"infer_ms"}
        second = await one.ask(endpoint="infer")
        assert second["reset"] is False
        assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}
        assert second["server_timing"]["prev_total_ms"] > first["server_timing"]["infer_ms"]
        assert await one.ask(endpoint="reset") == {"status": "reset successful"}
        assert (await one.ask())["reset"] is True


async def test_the_page_is_still_there(start_server):
    async with start_server(policy=POLICY) as server, aiohttp.ClientSession() as http:
        async with http.get(server.address + "/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
        async with http.get(server.address + "/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
        async with http.get(server.address + PATH) as answer:
            assert answer.status == 426


async def test_reset_and_session_ids_are_each_connections_own(start_server):
    async with (
        start_server(policy=POLICY) as server,
        robot(server) as one,
        robot(server) as two,
    ):
        assert (await one.ask(session_id="a"))["reset"]
        assert (await two.ask(session_id="a"))["reset"]
        assert not (await one.ask(session_id="a"))["reset"]
        await two.ask(endpoint="reset")
        assert not (await one.ask(session_id="a"))["reset"]
        assert (await one.ask(session_id="b"))["reset"]
        assert (await two.ask(session_id="a"))["reset"]


async def test_every_malformed_payload_gets_the_stated_error(start_server):
    payloads = [msgpack.packb({"state": value}) for value in MALFORMED.values()]
    payloads += [b"", b"\xc1", packb([1]), packb(3), packb({"endpoint": "x"}), b"\x80\x80"]
    payloads += [packb({"session_id": 1}), packb({"state": np.zeros(9)})[:-1]]
    async with start_server(policy=POLICY) as server, robot(server) as one:
        assert (await one.ask())["reset"]
        for payload in payloads:
            assert await one.send(payload) == INVALID
            assert not (await one.ask())["reset"]
        await one.socket.send_str('{"state": [1, 2]}')
        assert await one.receive() == INVALID
        assert not (await one.ask())["reset"]


async def test_whatever_is_sent_the_next_good_one_works(start_server):
    good = packb({"state": np.arange(6.0), "image": np.zeros((4, 4, 3), np.uint8), "prompt": "go"})
    damage = st.lists(
        st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), min_size=1, max_size=4
    )
    payloads = st.one_of(
        st.binary(max_size=64),
        damage.map(lambda changes: _damaged(good, changes)),
        st.integers(0, len(good) - 1).map(lambda size: good[:size]),
    )
    seen = []

    @settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
    @given(payloads)
    def collect(payload):
        seen.append(payload)

    collect()
    async with start_server(policy=POLICY) as server, robot(server) as one:
        for payload in seen:
            answer = await one.send(payload)
            assert answer == INVALID or "actions" in answer or "status" in answer
            assert "actions" in await one.send(good)
        results = context(server).counters.robot_requests
        assert results["reply"] + results["invalid"] == 2 * len(seen)
        assert results["invalid"] > 50


def _damaged(data, changes):
    damaged = bytearray(data)
    for at, value in changes:
        damaged[at] = value
    return bytes(damaged)


@pytest.mark.parametrize(
    ("do", "said"),
    [("fail", "Internal inference error"), ("refuse", "do is not what I do")],
)
async def test_a_failed_inference_is_told_and_ends_the_connection(start_server, do, said):
    async with (
        start_server(policy=POLICY) as server,
        robot(server) as one,
        robot(server) as other,
    ):
        await one.socket.send_bytes(packb({"do": do}))
        assert await one.told() == (said, 1011)
        assert (await other.ask())["reset"]


async def test_a_policy_that_dies_is_told_and_comes_back(start_server):
    async with start_server(policy=POLICY) as server:
        async with robot(server) as one:
            await one.socket.send_bytes(packb({"do": "die"}))
            assert await one.told() == ("Internal inference error", 1011)
        async with connect(server) as early:  # it takes a while to start
            text, code = await early.told()
            assert (json.loads(text), code) == (UNAVAILABLE, 1013)
        async with asyncio.timeout(30):
            while True:
                async with connect(server) as late:
                    if (await late.socket.receive()).type is aiohttp.WSMsgType.BINARY:
                        assert (await late.ask())["reset"]
                        return


async def test_without_a_policy_it_says_so(start_server):
    async with start_server() as server:
        for path in (PATH, "/"):
            async with connect(server, path) as one:
                text, code = await one.told()
                assert (json.loads(text), code) == (UNAVAILABLE, 1000)


async def test_a_policy_that_cannot_be_loaded_stops_the_start(start_server):
    with pytest.raises(EngineError, match="no weights here"):
        async with start_server(policy="tests.duplex.robot.policies:Unloadable"):
            pass


async def test_a_silent_robot_is_disconnected_but_not_one_that_waits(start_server, tmp_path):
    gate = tmp_path / "gate"
    async with start_server(policy=POLICY, robot_idle_timeout_s=0.2) as server:
        async with robot(server) as silent:
            assert await silent.close_code() == 1000
        async with robot(server) as one:
            await one.socket.send_bytes(packb({"do": "wait", "gate": str(gate)}))
            async with robot(server) as silent:
                assert await silent.close_code() == 1000  # an idle time has passed
            gate.touch()
            assert "actions" in await one.receive()


async def test_a_robot_that_leaves_while_it_waits_frees_its_place(start_server, tmp_path):
    gate = tmp_path / "gate"
    async with start_server(policy=POLICY, max_connections=1) as server:
        async with robot(server) as one:
            await one.socket.send_bytes(packb({"do": "wait", "gate": str(gate)}))
            while not gate.with_suffix(".waiting").exists():
                await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            while context(server).desk.open:
                await asyncio.sleep(0.001)
        gate.touch()
        async with robot(server) as next_one:
            assert (await next_one.ask())["reset"]


async def test_messages_sent_ahead_are_answered_in_order(start_server):
    async with start_server(policy=POLICY) as server, robot(server) as one:
        for number in range(20):
            await one.socket.send_bytes(packb({"x": float(number)}))
        for number in range(20):
            assert (await one.receive())["actions"][0, 0] == number


async def test_64_mib_are_taken_and_not_a_byte_more(start_server):
    async with start_server(policy=POLICY, max_message_bytes=1024) as server:
        async with robot(server) as one:
            overhead = len(packb({"image": np.zeros(70_000, np.uint8)})) - 70_000
            image = np.zeros(MAX_REQUEST_BYTES - overhead, np.uint8)
            payload = packb({"image": image})
            assert len(payload) == MAX_REQUEST_BYTES
            assert (await one.send(payload))["size"] == image.nbytes
            with suppress(aiohttp.ClientError, ConnectionError):  # it may be cut off as it sends
                await one.socket.send_bytes(payload + b"\x00")
                assert (await one.socket.receive(timeout=20)).type is not aiohttp.WSMsgType.BINARY
        async with robot(server) as next_one:
            assert (await next_one.ask())["reset"]


@pytest.mark.parametrize("path", [PATH, "/"])
async def test_robots_show_their_key_in_openpis_way(start_server, path):
    async with start_server(policy=POLICY, api_keys=(KEY,)) as server:
        for scheme in ("Api-Key", "Bearer"):
            headers = {"Authorization": f"{scheme} {KEY}"}
            async with robot(server, path, headers=headers) as one:
                assert (await one.ask())["reset"]
        for headers in ({}, {"Authorization": "Api-Key wrong-horse-battery"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await connect(server, path, headers=headers).__aenter__()
            assert refused.value.status == 401
        async with aiohttp.ClientSession() as http, http.get(server.address + "/") as answer:
            assert answer.status == 200


async def test_foreign_pages_are_no_robots(start_server):
    async with start_server(policy=POLICY) as server:
        headers = {"Origin": "https://elsewhere.example"}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await connect(server, "/", headers=headers).__aenter__()
        assert refused.value.status == 403


async def test_a_server_that_ends_closes_robots_for_another_try(start_server):
    async with start_server(policy=POLICY, drain_s=0.05) as server, robot(server) as one:
        draining = asyncio.create_task(server.drain())
        assert (await one.ask())["reset"]  # those that are here have drain_s
        await draining
        async with connect(server) as late:
            text, code = await late.told()
            assert (json.loads(text), code) == (UNAVAILABLE, 1013)
        stopping = asyncio.create_task(server.stop())
        assert await one.close_code() == 1012
        await stopping
