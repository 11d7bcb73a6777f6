"""The server as a process of its own: it starts, is told to end, and ends."""

import asyncio
import os
import re
import signal
import socket as sockets
from pathlib import Path

import aiohttp
import psutil
import pytest


async def status(server, path="/ready"):
    async with aiohttp.ClientSession() as http, http.get(server.address + path) as answer:
        return answer.status, await answer.json()


async def draining(server):
    while (await status(server))[0] == 200:
        await asyncio.sleep(0.01)


def test_the_start_says_what_is_served(start_process):
    with start_process("echo", "--max-sessions", "3") as server:
        server.read_until("callers")
        shown = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in server.output)
        assert shown["model"].startswith("echo on cpu")
        assert shown["slots"] == "3"
        assert re.search(r"a slot, .* in all", shown["memory"])
        assert shown["callers"].endswith("/v1/realtime?duplex=1")


def test_neither_process_of_echo_maps_torch(start_process):
    with start_process("echo") as server:
        parent = psutil.Process(server.process.pid)
        for process in (parent, *parent.children(recursive=True)):
            assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_an_address_in_use_is_said_in_a_line(start_process):
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pytest.fail.Exception) as caught, start_process("echo", port=port):
            pass
    assert "can't listen on 127.0.0.1" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_unknown_model_is_said_in_a_line(start_process):
    with pytest.raises(pytest.fail.Exception) as caught, start_process("no-such-model"):
        pass
    assert "no-such-model" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_without_sessions_a_signal_ends_it_at_once(start_process, number):
    with start_process("echo") as server:
        engine = psutil.Process(server.process.pid).children()
        assert (await status(server))[0] == 200
        assert await asyncio.to_thread(server.stop, number) == 0
        assert not [process for process in engine if process.is_running()]
        assert "draining" not in server.rest()


async def test_live_sessions_may_go_on_and_then_the_server_ends(start_process, call):
    with start_process("echo") as server:
        async with call(server) as caller:
            await caller.configure()
            os.kill(server.process.pid, signal.SIGTERM)
            await draining(server)
            async with call(server) as late:
                assert (await late.until("error"))["error"]["code"] == "resource_exhausted"
                assert await late.close_code() == 1013
            assert await status(server) == (503, {"status": "not_ready", "reason": "draining"})
            await caller.converse(5)
            await caller.send("session.close")
            assert await caller.close_code() == 1000
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert "draining: live sessions (1) have 30 s" in server.rest()


async def test_when_the_time_to_drain_is_over_sessions_end_with_1012(start_process, call):
    with start_process("echo", DUPLEX_DRAIN_S="0.1") as server:
        async with call(server) as caller:
            await caller.configure()
            await caller.converse(2)
            os.kill(server.process.pid, signal.SIGTERM)
            assert await caller.close_code() == 1012
            assert caller.seen[-1]["reason"] == "server_shutdown"
        assert await asyncio.to_thread(server.process.wait, 30) == 0


async def test_a_second_signal_does_not_wait_for_sessions(start_process, call):
    with start_process("echo", DUPLEX_DRAIN_S="3600") as server:
        engine = psutil.Process(server.process.pid).children()
        async with call(server) as caller:
            await caller.configure()
            os.kill(server.process.pid, signal.SIGTERM)
            await draining(server)
            os.kill(server.process.pid, signal.SIGINT)
            assert await caller.close_code() == 1012
            assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert not [process for process in engine if process.is_running()]


async def test_when_the_engine_dies_its_sessions_end_and_new_ones_work(start_process, call):
    with start_process("echo") as server:
        async with call(server) as caller:
            await caller.configure()
            await caller.converse(2)
            (engine,) = [
                process
                for process in psutil.Process(server.process.pid).children()
                if "resource_tracker" not in " ".join(process.cmdline())
            ]
            engine.kill()
            assert (await caller.until("error"))["error"]["code"] == "internal_error"
            assert await caller.close_code() == 1011
        while (await status(server))[0] != 200:
            await asyncio.sleep(0.05)
        async with call(server) as caller:
            await caller.configure()
            await caller.converse(3)
