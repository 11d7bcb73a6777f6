"""Clients that vanish, stall or flood: each loses its own connection and nothing else happens."""

import asyncio
import base64
import io
import os
import socket as sockets
import struct
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import numpy as np
import pytest

from web.context import CONTEXT

FRAME = 1_920
PING, PONG = 9, 10
UPDATE = b'{"type": "session.update", "session": {"output_audio_format": "pcm_f32le"}}'
APPEND = msgspec.json.encode(
    {
        "type": "input_audio_buffer.append",
        "audio": base64.b64encode(np.zeros(FRAME, "<f4").tobytes()).decode(),
        "format": "pcm_f32le",
    }
)


@asynccontextmanager
async def raw_socket(server, path=b"/v1/realtime?duplex=1", *, receive_buffer=None):
    """A WebSocket that does nothing by itself: no pong, no close, no read."""
    raw = sockets.socket()
    raw.setblocking(False)
    if receive_buffer is not None:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    try:
        writer.write(upgrade(path))
        await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()


def upgrade(path):
    return (
        b"GET " + path + b" HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n\r\n"
    )


def masked(payload, opcode=1, *, declared=None):
    """A client's frame; `declared` lies about its length."""
    length = len(payload) if declared is None else declared
    return struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length) + bytes(4) + payload


def control(opcode, payload=b""):
    """A client's control frame, whose length has no second form."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


async def until(reader, wanted):
    """Reads until this has come, and nothing after it."""
    seen = b""
    while not seen.endswith(wanted):
        seen += await reader.readexactly(1)


async def gone(reader):
    """Reads until the server has closed the connection."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionResetError:
        pass


async def part(server, data):
    """A client whose last words these are: it is gone before anybody can answer them."""
    loop = asyncio.get_running_loop()
    with sockets.create_connection(("127.0.0.1", server.port)) as raw:
        raw.setblocking(False)
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        await loop.sock_sendall(raw, upgrade(b"/v1/realtime?duplex=1"))
        await loop.sock_recv(raw, 1 << 16)
        raw.send(data)


async def end(server):
    """All sessions have ended and no slot is held any more."""
    assert await server.runtime.drain(20)
    stats = await server.runtime.engine.stats()
    assert (stats.live, stats.prefill) == (0, 0)
    assert stats.free + stats.draining == stats.slots


async def test_who_never_reads_is_cut_and_slows_nobody(start_server, call):
    async with (
        start_server(write_timeout_s=0.2) as server,
        raw_socket(server, receive_buffer=4096) as (_, writer),
        call(server) as other,
    ):
        await other.configure()
        writer.write(masked(UPDATE))
        try:
            while not writer.transport.is_closing():
                writer.write(masked(APPEND))
                await writer.drain()
        except ConnectionError:
            pass
        await other.converse(5)
        await other.send("session.close")
        assert await other.close_code() == 1000
        await end(server)
        counted = server.runtime.metrics.slow_readers
        assert counted == 1


async def test_of_who_sends_in_a_hurry_the_kernel_holds_no_megabytes(start_server):
    async with start_server() as server, raw_socket(server) as (_, writer):
        (connection,) = server._runner.server.connections
        held = connection.transport.get_extra_info("socket")
        writer.write(b"\x01" + masked(b"{")[1:])
        for _ in range(100):
            writer.write((b"\x00\x80" + bytes(4)) * 50_000)
            await writer.drain()
        assert held.getsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF) <= 1 << 19


async def test_who_vanishes_is_held_and_makes_room_for_the_next(start_server, call):
    async with start_server(resume_grace_s=30) as server, call(server) as other:
        await other.configure()
        for _ in range(40):
            async with raw_socket(server) as (reader, writer):
                writer.write(masked(UPDATE) + masked(APPEND) + masked(APPEND)[:500])
                seen = b""
                while b"response.output_audio.delta" not in seen:
                    data = await reader.read(1 << 16)
                    assert data, seen
                    seen += data
        await other.converse(5)
        await other.send("session.close")
        assert await other.close_code() == 1000
        closed = server.runtime.metrics.sessions_closed
        assert closed.keys() == {"yielded", "client_close"}
        assert closed["yielded"] == 39
        await server.runtime.resumption.close()
        await end(server)


async def test_a_half_open_connection_is_noticed(start_server):
    async with (
        start_server(heartbeat_s=0.1) as server,
        raw_socket(server) as (reader, writer),
    ):
        writer.write(masked(UPDATE))
        await gone(reader)
        await end(server)


async def test_one_that_answers_pings_is_not_cut(start_server, call):
    async with start_server(heartbeat_s=0.2) as server, call(server) as caller:
        await caller.configure()
        # Reading is what lets the client answer; the pause is longer than several heartbeats.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await caller.socket.receive()
        await caller.converse(3)


@pytest.mark.parametrize(
    "path", [b"/v1/realtime?duplex=1", b"/v1/realtime/robot/openpi", b"/api/chat"]
)
async def test_pings_and_pongs_count_against_the_message_rate(start_server, path):
    async with (
        start_server(message_rate=20, policy="tests.duplex.robot.policies:Policy") as server,
        raw_socket(server, path) as (reader, writer),
    ):
        counters = server._runner.app[CONTEXT].counters
        for number in range(3):
            writer.write(control(PING, b"number %d" % number))
        for number in range(3):
            await until(reader, b"\x8a\x08number %d" % number)
        paused = counters.paused_reads
        assert paused > 0
        writer.write(control(PONG, b"unasked") * 3 + control(PING, b"last"))
        await until(reader, b"\x8a\x04last")
        assert counters.paused_reads >= paused + 3


async def test_who_pings_and_hangs_up_has_left_and_nothing_failed(start_server, caplog):
    async with start_server() as server:
        await part(server, control(PING) * 20)
        await end(server)
        assert server.runtime.metrics.sessions_closed == {"disconnected": 1}
        assert not server.runtime.metrics.errors
    assert not caplog.records


async def test_who_resumes_what_is_lost_and_hangs_up_has_left(start_server, call, caplog):
    async with start_server(resume_grace_s=30) as server, call(server) as caller:
        created = await caller.until("session.created")
        await caller.send("session.event_ack", server_event_seq=created["server_event_seq"])
        resume = {
            "type": "session.resume",
            "session_id": created["session"]["id"],
            "resume_token": created["resume_token"],
            "last_received_server_event_seq": 0,
        }
        await part(server, control(PING) * 20 + masked(msgspec.json.encode(resume)))
        await caller.until("session.replaced")
        await end(server)
        assert set(server.runtime.metrics.sessions_closed) == {"resync_required"}
        assert not server.runtime.metrics.errors
    assert not caplog.records


async def test_a_connection_that_sends_no_request_is_closed(start_server):
    async with start_server(handshake_timeout_s=0.1) as server:
        for half in (b"", b"GET / HTTP/1.1\r\nHost: he"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(half)
            await gone(reader)
            writer.close()


SLOW_BODY = b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{"
SLOW_PARTS = (
    b"POST /v1/realtime/calls HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="sdp"\r\n\r\nv=0'
)


@pytest.mark.parametrize("body", [SLOW_BODY, SLOW_PARTS])
async def test_a_body_that_does_not_come_is_408(start_server, monkeypatch, body):
    monkeypatch.setattr("web.bodies.BODY_S", 0.1)
    async with start_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(body)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in await reader.read()
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost here\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_line_and_a_count(start_server, caplog, sent):
    caplog.set_level("INFO")
    async with start_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        assert b" 400 Bad Request" in await reader.read()
        writer.close()
        async with aiohttp.ClientSession() as http:
            metrics = await (await http.get(server.address + "/metrics")).text()
    assert "duplex_malformed_total 1.0" in metrics
    (line,) = [record for record in caplog.records if record.name == "web.connections"]
    assert line.getMessage().startswith("127.0.0.1 sent what is no HTTP: ")
    assert "here" not in line.getMessage()
    assert line.exc_info is None


MILLIONS = [
    b"[" + b"{}," * 3_000_000 + b"{}]",
    b"[" + b",".join([b"[" * 70 + b"]" * 70] * 50_000) + b"]",
    b"[" + b",".join([b'{"a":' * 50 + b"1" + b"}" * 50] * 40_000) + b"]",
]


@pytest.mark.parametrize("items", MILLIONS, ids=["in a row", "of lists", "of objects"])
async def test_a_message_of_millions_of_items_is_refused_unread(start_server, call, items):
    async with start_server() as server, call(server) as caller:
        await caller.configure()
        update = b'{"type": "session.update", "session": {"voice": ' + items + b"}}"
        await caller.socket.send_str(update.decode())
        error = (await caller.until("error"))["error"]
        assert (error["code"], "more than 100000 items" in error["message"]) == (
            "invalid_value",
            True,
        )
        await caller.converse(2)
        async with aiohttp.ClientSession() as http:
            url = server.address + "/v1/chat/completions"
            body = io.BytesIO(b'{"session": ' + items + b"}")
            async with http.post(url, data=body) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (
                    400,
                    "invalid_value",
                )


async def test_who_leaves_within_a_body_is_no_failure_of_ours(start_server, caplog):
    async with start_server() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(SLOW_BODY)
        await writer.drain()
        async with aiohttp.ClientSession() as http:
            await http.get(server.address + "/health")  # by now the request has begun
            writer.transport.abort()
            await http.get(server.address + "/health")
    assert not caplog.records


@pytest.mark.parametrize("size", [100 << 20, 1 << 40])
async def test_a_huge_message_is_refused_at_its_header(start_server, call, size):
    async with (
        start_server() as server,
        raw_socket(server) as (reader, writer),
        call(server) as other,
    ):
        await other.configure()
        writer.write(masked(b"x", declared=size))
        await gone(reader)
        await other.converse(3)
        await other.send("session.close")
        await end(server)


FRAGMENTS = {
    "before anything": [],
    "in a frame's header": [masked(UPDATE)[:1]],
    "in an update": [masked(UPDATE)[:20]],
    "after an update": [masked(UPDATE)],
    "in an append": [masked(UPDATE), masked(APPEND)[:500]],
    "after an append": [masked(UPDATE), masked(APPEND) * 20],
    "after a close": [masked(UPDATE), masked(APPEND), masked(b'{"type": "session.close"}')],
    "with a reserved opcode": [masked(UPDATE), masked(b"", 5)],
    "with an unmasked frame": [masked(UPDATE), b"\x81\x02{}"],
    "with a bad close": [masked(UPDATE), masked(b"\x00", 8)],
    "in the middle of a fragmented message": [masked(UPDATE), b"\x01" + masked(b"{")[1:]],
}


@pytest.mark.parametrize("left", FRAGMENTS)
@pytest.mark.parametrize("how", ["abort", "half close"])
async def test_who_leaves_at_any_moment_leaves_nothing_behind(start_server, call, left, how):
    async with start_server(heartbeat_s=0.2) as server, call(server) as other:
        await other.configure()
        async with raw_socket(server) as (reader, writer):
            for part in FRAGMENTS[left]:
                writer.write(part)
            await writer.drain()
            if how == "abort":
                writer.transport.abort()
            else:
                writer.write_eof()
                await gone(reader)
        await other.converse(3)
        await other.send("session.close")
        assert await other.close_code() == 1000
        await end(server)
