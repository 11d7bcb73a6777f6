"""A server whose callers are carried by two processes, from outside."""

import asyncio
import base64
import json
import os
import re
import signal
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import product

import aiohttp
import numpy as np
import psutil
import pytest
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.media.rtc_client import Client, speech

SLOTS = 4
HANGS_S = 100
"""What hasn't come by then never comes; a process that is started again takes a while."""
CHAT = {"model": "parrot", "stages": {"reply": {"kind": "echo", "final": True}}}
DUPLEX = "/v1/realtime?duplex=1"
FRAME = np.linspace(-0.5, 0.5, 1_920, dtype="<f4").tobytes()


@pytest.fixture(scope="module")
def workers(start_process):
    """`with workers(...) as server`: two workers and four slots."""

    @contextmanager
    def start(*arguments, **options):
        given = ("echo", "--max-sessions", str(SLOTS), "--media-workers", "2", *arguments)
        with start_process(*given, **options) as server:
            yield server

    return start


@pytest.fixture(scope="module")
def server(workers):
    """One for all tests that leave it as it was."""
    with workers(DUPLEX_CHAT=json.dumps(CHAT)) as server:
        yield server


async def get(server, path):
    async with aiohttp.ClientSession() as http, http.get(server.address + path) as answer:
        return answer.status, await answer.text()


async def samples(server, name):
    """The values of a metric, by worker."""
    _, text = await get(server, "/metrics")
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("worker"): sample.value for sample in found}


async def until(server, name, condition):
    """Waits for the values of a metric; hangs, and so fails, if they never come."""
    async with asyncio.timeout(HANGS_S):
        while not condition(values := await samples(server, name)):
            await asyncio.sleep(0.02)
    return values


async def all_free(server):
    await until(server, "duplex_slots_used", lambda used: used == {None: 0})


def worker_processes(server):
    """By number."""
    children = psutil.Process(server.process.pid).children()
    commands = {process: process.cmdline() for process in children}
    return {
        int(command[-1].partition("-")[0]): process
        for process, command in commands.items()
        if "duplex.cli.media_worker" in command
    }


@asynccontextmanager
async def conversations(server, call, count):
    """So many callers, who have spoken; each with the worker that carries it."""
    async with AsyncExitStack() as stack:
        callers = []
        before = await samples(server, "duplex_sessions")
        for _ in range(count):
            caller = await stack.enter_async_context(call(server, DUPLEX))
            await caller.configure()
            await caller.converse(1)
            after = await samples(server, "duplex_sessions")
            (caller.worker,) = (int(w) for w in after if after[w] > before.get(w, 0))
            before = after
            callers.append(caller)
        yield callers


async def test_callers_are_spread_and_the_slots_are_all_of_ours(server, call):
    async with conversations(server, call, SLOTS) as callers:
        assert sorted(caller.worker for caller in callers) == [0, 0, 1, 1]
        assert await samples(server, "duplex_slots_used") == {None: SLOTS}
        # Two of a worker's slots are no limit of the worker's: the next one is refused anywhere.
        for _ in range(2):
            async with call(server, DUPLEX) as caller:
                await caller.send("session.update", session={})
                assert (await caller.until("error"))["error"]["code"] == "resource_exhausted"
                assert await caller.close_code() == 1013
        for caller in callers:
            await caller.converse(3)
        fed = await samples(server, "duplex_frames_in_total")
        assert fed["0"] >= 8
        assert fed["1"] >= 8
        assert fed["hub"] == 0
        assert set(await samples(server, "process_cpu_seconds_total")) == {"0", "1", "hub"}
        assert await samples(server, "duplex_worker_starts_total") == {"0": 1, "1": 1}
    await all_free(server)


async def test_a_crowd_that_comes_at_once_waits_and_is_served(server):
    """More connections than the lines to workers that look elsewhere can hold."""
    port = int(server.address.rpartition(":")[2])

    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: crowd\r\nConnection: close\r\n\r\n")
        return reader, writer

    busy = worker_processes(server).values()
    for process in busy:
        process.suspend()
    try:
        crowd = [await ask() for _ in range(700)]
    finally:
        for process in busy:
            process.resume()
    async with asyncio.timeout(HANGS_S):
        for reader, writer in crowd:
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()


async def test_a_session_id_is_used_by_one_of_them(server, call):
    async with call(server, DUPLEX + "&session_id=mine") as caller:
        await caller.until("session.created")
        for _ in range(2):  # to either worker
            status, text = await get(server, DUPLEX + "&session_id=mine")
            assert (status, json.loads(text)["error"]["code"]) == (409, "session_exists")


async def resumed(server, socket, created, last):
    await socket.send_json(
        {
            "type": "session.resume",
            "session_id": created["session_id"],
            "resume_token": created["resume_token"],
            "last_received_server_event_seq": last,
        }
    )
    return (await socket.receive(timeout=20)).json()


async def test_a_session_is_resumed_through_the_other_worker(server, call):
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def connect(path=DUPLEX + "&autostart=0"):
            return await stack.enter_async_context(http.ws_connect(server.address + path))

        async def hear(socket, kind):
            while (event := (await socket.receive(timeout=20)).json())["type"] != kind:
                pass
            return event

        async def speak(socket):
            audio = base64.b64encode(FRAME).decode()
            append = {"type": "input_audio_buffer.append", "audio": audio, "format": "pcm_f32le"}
            await socket.send_json(append)

        first = await connect(DUPLEX)
        created = await hear(first, "session.created")
        formats = {"output_audio_format": "pcm_f32le"}
        await first.send_json({"type": "session.update", "session": formats})
        await hear(first, "session.updated")
        await speak(first)
        heard = await hear(first, "response.output_audio.delta")
        home = (await samples(server, "duplex_sessions"))["0"]
        here, there = ("0", "1") if home else ("1", "0")
        for turn in range(2):
            first._response.connection.transport.abort()
            await until(server, "duplex_sessions_held", lambda held: held[here] == 1)
            second = await connect()
            while (await samples(server, "duplex_connections"))[there] == 0:
                second, unwanted = await connect(), second
                await unwanted.close()
            notice = await resumed(server, second, created, heard["server_event_seq"])
            assert notice["type"] == "session.resumed"
            assert notice["attachment_generation"] == turn + 2
            await speak(second)
            heard = await hear(second, "response.output_audio.delta")
            assert base64.b64decode(heard["delta"]) == FRAME
            values = await samples(server, "duplex_sessions")
            assert (values[here], values[there]) == (1, 0)
            first, created = second, notice
        # A token that was used up is refused, and the socket that showed it lives on.
        third = await connect()
        stale = created | {"resume_token": created["resume_token"][:-1] + "~"}
        refusal = await resumed(server, third, stale, 0)
        assert refusal["error"]["code"] == "invalid_resume_token"
        asked = [await connect() for _ in range(4)]  # both workers are
        for other in asked:  # wherever the session is, the token isn't spent by a wrong number
            refusal = await resumed(server, other, created, 1_000_000)
            assert refusal["error"]["code"] == "invalid_session_resume"
            assert refusal["error"]["param"] == "last_received_server_event_seq"
        nobodys = ("2-0.wrong", "0-1.wrong", "9" * 200 + "-0.wrong")  # no worker's home
        for other, token in product(asked, ("wrong", "0-0.wrong", "1-0.wrong", *nobodys)):
            made_up = created | {"resume_token": token}
            refusal = await resumed(server, other, made_up, 0)
            assert refusal["error"]["code"] == "invalid_resume_token", token
            refusal = await resumed(server, other, made_up | {"session_id": "sess_x"}, 0)
            assert refusal["error"]["code"] == "invalid_session_resume", token
        for other in asked:
            await other.close()
        await second.send_json({"type": "session.close"})
        assert (await hear(second, "session.closed"))["reason"] == "client_close"
        assert (await second.receive(timeout=20)).type is aiohttp.WSMsgType.CLOSE
        assert second.close_code == 1000
        late = await resumed(server, third, created, 0)
        assert late["error"]["code"] == "session_resume_expired"
        await third.close()
    await all_free(server)


async def test_a_session_without_its_client_yields_to_a_caller_of_the_other_worker(server, call):
    async with AsyncExitStack() as stack:
        callers = []
        for _ in range(SLOTS):
            caller = await stack.enter_async_context(call(server, DUPLEX))
            await caller.until("session.created")
            await caller.configure()
            callers.append(caller)
        callers[0].socket._response.connection.transport.abort()
        await until(server, "duplex_sessions_held", lambda held: sum(held.values()) == 1)
        for _ in range(2):  # one of them comes to the worker that holds no session
            async with call(server, DUPLEX) as newcomer:
                await newcomer.configure()
                await newcomer.converse(1)
    await all_free(server)


@asynccontextmanager
async def phone(server, pcm=None):
    """A WebRTC call, and its address."""
    client = Client(pcm)
    async with aiohttp.ClientSession() as http:
        try:
            offer, headers = await client.offer(), {"Content-Type": "application/sdp"}
            url = server.address + "/v1/realtime/calls?duplex=1"
            async with http.post(url, data=offer, headers=headers) as answer:
                assert answer.status == 201
                await client.answered(await answer.text())
            yield client, server.address + answer.headers["Location"]
        finally:
            await client.close()


async def test_calls_are_echoed_by_both_and_hung_up_at_either(server):
    homes = set()
    while homes != {"0-0", "1-0"}:
        async with phone(server, speech(5.0)) as (client, url):
            homes.add(url.rpartition("/")[2].split("_")[1])
            async with asyncio.timeout(HANGS_S):
                while not any(np.abs(piece).max() > 0.1 for piece in client.heard):
                    await asyncio.sleep(0.01)
            statuses = []
            for _ in range(2):  # a connection of its own each time, so to both workers
                async with aiohttp.ClientSession() as http, http.post(url + "/hangup") as answer:
                    statuses.append(answer.status)
            assert statuses == [200, 404]
            await client.until(lambda client=client: client.pc.connectionState == "closed")
    await all_free(server)


async def test_chat_is_answered_through_either(server):
    for _ in range(2):
        async with AsyncOpenAI(
            api_key="unused-key", base_url=server.address + "/v1", max_retries=0
        ) as client:
            messages = [{"role": "user", "content": "one two"}]
            asked = {"model": "parrot", "messages": messages}
            answer = await client.chat.completions.create(**asked)
            assert answer.choices[0].message.content == "one two"
            pieces = [
                chunk async for chunk in await client.chat.completions.create(**asked, stream=True)
            ]
            assert "".join(c.choices[0].delta.content or "" for c in pieces) == "one two"
            with pytest.raises(Exception, match="no-such"):
                await client.chat.completions.create(model="no-such", messages=messages)


async def test_chat_whose_body_is_slow_is_no_failure(workers):
    """Slower than a request's head may be; which is what the hub, too, allows a connection."""
    options = {"DUPLEX_CHAT": json.dumps(CHAT), "DUPLEX_HANDSHAKE_TIMEOUT_S": "0.5"}
    messages = [{"role": "user", "content": "one two"}]
    body = json.dumps({"model": "parrot", "messages": messages}).encode()
    with workers(**options) as server:
        port = int(server.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await reader.read(1)
        writer.write(body)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"one two" in answer
        writer.close()


async def test_when_the_engine_dies_all_are_told_and_can_come_again(server, call):
    async with call(server, DUPLEX) as one, call(server, DUPLEX) as two:
        for caller in (one, two):
            await caller.configure()
            await caller.converse(1)
        children = psutil.Process(server.process.pid).children()
        (engine,) = (p for p in children if "engine.worker" in p.cmdline())
        engine.kill()
        for caller in (one, two):
            assert (await caller.until("error"))["error"]["code"] == "internal_error"
            assert await caller.close_code() == 1011
    ready = 0
    async with asyncio.timeout(HANGS_S):
        while ready < 4:  # so both are
            ready = ready + 1 if (await get(server, "/ready"))[0] == 200 else 0
    async with conversations(server, call, 2):
        pass
    await all_free(server)


async def test_places_and_secrets_are_those_of_the_whole_server(workers):
    key = "correct-horse-battery"
    with workers("--api-key", key, DUPLEX_MAX_CONNECTIONS_PER_CLIENT="3") as server:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            bearer = {"Authorization": f"Bearer {key}"}
            url = server.address + "/v1/realtime/client_secrets"
            async with http.post(url, json={}, headers=bearer) as answer:
                secret = (await answer.json())["value"]
            sockets = []
            for _ in range(3):
                headers = {"Authorization": f"Bearer {secret}"}
                connecting = http.ws_connect(server.address + DUPLEX, headers=headers)
                sockets.append(socket := await stack.enter_async_context(connecting))
                assert (await socket.receive(timeout=20)).json()["type"] == "session.created"
            for _ in range(2):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                    await http.ws_connect(server.address + DUPLEX, headers=bearer)
                assert refusal.value.status == 429
            await sockets[0].close()
            async with asyncio.timeout(HANGS_S):
                while True:
                    try:
                        connecting = http.ws_connect(server.address + DUPLEX, headers=bearer)
                        again = await stack.enter_async_context(connecting)
                    except aiohttp.WSServerHandshakeError:
                        continue
                    assert (await again.receive(timeout=20)).json()["type"] == "session.created"
                    break


async def test_a_worker_that_dies_ends_its_own_callers_only(workers, call):
    with workers() as server:
        async with AsyncExitStack() as stack:
            one, two = await stack.enter_async_context(conversations(server, call, 2))
            assert {one.worker, two.worker} == {0, 1}
            before = worker_processes(server)
            created = next(e for e in one.seen if e["type"] == "session.created")
            before[one.worker].kill()
            assert await one.close_code() == 1006  # nobody is left to say more
            await until(server, "duplex_slots_used", lambda used: used == {None: 1})
            await two.converse(3)
            again = {str(one.worker): 2, str(two.worker): 1}
            await until(server, "duplex_worker_starts_total", lambda starts: starts == again)
            served = {"0", "1", "hub"}
            await until(server, "duplex_sessions", lambda told: set(told) == served)
            async with call(server, DUPLEX + "&autostart=0") as heir:
                late = await resumed(server, heir.socket, created, 0)
                assert late["error"]["code"] == "session_resume_expired"
            more = await stack.enter_async_context(conversations(server, call, 2))
            assert one.worker in {caller.worker for caller in more}
            after = worker_processes(server)
            assert after[one.worker].pid != before[one.worker].pid
            assert after[two.worker].pid == before[two.worker].pid


async def test_a_signal_drains_all_of_them(workers, call):
    with workers() as server:
        async with call(server, DUPLEX) as one, call(server, DUPLEX) as two:
            for caller in (one, two):
                await caller.configure()
                await caller.converse(1)
            family = psutil.Process(server.process.pid).children(recursive=True)
            for process in [*family, psutil.Process(server.process.pid)]:
                os.kill(process.pid, signal.SIGTERM)  # as a service manager does
            async with asyncio.timeout(HANGS_S):
                while (await get(server, "/ready"))[0] == 200:
                    await asyncio.sleep(0.01)
            await one.converse(2)
            await one.send("session.close")
            assert await one.close_code() == 1000
            await two.converse(2)
            server.process.send_signal(signal.SIGTERM)  # the second: at once
            assert await two.close_code() == 1012
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert not [process for process in family if process.is_running()]
        said = [line for line in server.rest().splitlines() if "draining" in line]
        assert len(said) == 2  # a line of each worker, and none of the process without sessions
        assert all(re.search(r"worker \d-0 .*live sessions \(1\)", line) for line in said)


async def test_when_the_hub_dies_nothing_is_left(workers, call):
    with workers() as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        async with call(server, DUPLEX) as caller:
            await caller.configure()
            server.process.kill()
            assert await caller.close_code() in (1006, 1011, 1012)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, family, 20)
        assert not alive
        assert len(gone) >= 3


async def test_a_certificate_made_at_start_is_the_same_at_all(workers):
    with workers("--tls", "self-signed") as server:
        seen = set()
        for _ in range(4):
            port = int(server.address.rpartition(":")[2])
            seen.add(await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)))
        assert len(seen) == 1
        url = server.address + "/ready"
        async with aiohttp.ClientSession() as http, http.get(url, ssl=False) as answer:
            assert answer.status == 200


def test_a_taken_address_is_said_in_a_line(workers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pytest.fail.Exception) as caught, workers(port=port):
            pass
    assert "can't listen on 127.0.0.1" in str(caught.value)
    assert "Traceback" not in str(caught.value)
