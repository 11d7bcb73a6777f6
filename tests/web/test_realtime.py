import asyncio

import aiohttp
import numpy as np
import pytest

FRAME = 1_920


async def test_a_conversation_from_start_to_end(start_server, call):
    async with start_server() as server, call(server) as caller:
        created = await caller.until("session.created")
        assert created["session"]["capabilities"]["max_sessions"] == 2
        await caller.configure()
        await caller.converse(5)
        await caller.send("session.close")
        closed = await caller.until("session.closed")
        assert closed["reason"] == "client_close"
        assert await caller.close_code() == 1000
        numbers = [event["server_event_seq"] for event in caller.seen]
        assert numbers == list(range(1, len(numbers) + 1))
        assert "error" not in [event["type"] for event in caller.seen]


async def test_slots_are_refused_with_1013_and_given_back(start_server, call):
    async with start_server() as server, call(server) as first, call(server) as second:
        await first.configure()
        await second.configure()
        async with call(server) as third:
            await third.send("session.update", session={}, event_id="mine")
            error = (await third.until("error"))["error"]
            assert (error["code"], error["event_id"]) == ("resource_exhausted", "mine")
            assert await third.close_code() == 1013
        await first.send("session.close")
        assert await first.close_code() == 1000
        async with call(server) as third:
            await third.configure()
            await third.converse(2)
        await second.converse(2)


async def test_with_autostart_0_the_session_waits_for_its_client(start_server, call):
    path = "/v1/realtime?duplex=1&autostart=0"
    async with start_server() as server, call(server, path) as caller:
        await caller.configure()
        assert [event["type"] for event in caller.seen] == ["session.created", "session.updated"]


async def test_the_client_may_name_its_session_but_not_anothers(start_server, call):
    path = "/v1/realtime?duplex=1&session_id=mine-1"
    async with start_server() as server:
        async with call(server, path) as caller:
            assert (await caller.until("session.created"))["session"]["id"] == "mine-1"
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with call(server, path):
                    pass
            assert caught.value.status == 409
            await caller.send("session.close")
            await caller.close_code()
        async with call(server, path) as caller:
            await caller.until("session.created")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/realtime", 426, "upgrade_required"),
        ("/v1/realtime?duplex=1", 426, "upgrade_required"),
        ("/v1/realtime?duplex=1&session_id=a/b", 400, "invalid_value"),
        ("/v1/realtime?duplex=1&dialect=old", 400, "invalid_value"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
async def test_what_cannot_be_upgraded_says_why(start_server, path, status, code):
    async with start_server() as server, aiohttp.ClientSession() as http:
        answer = await http.get(server.address + path)
        assert answer.status == status
        error = (await answer.json())["error"]
        assert error["code"] == code
        assert error["message"]


async def test_another_models_name_is_substituted_and_said_so(start_server, call):
    path = "/v1/realtime?duplex=1&model=gpt-realtime"
    async with start_server() as server, call(server, path) as caller:
        session = (await caller.until("session.created"))["session"]
        assert session["model"] == "echo"
        assert session["substitutions"][0]["requested"] == "gpt-realtime"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("\x00", "invalid_json"),
        ("[]", "invalid_value"),
        ('{"type": "nothing"}', "unknown_event"),
        ('{"type": "input_audio_buffer.append", "audio": "@@"}', "bad_audio"),
        (b'{"type": "session.heartbeat"}', "invalid_json"),
    ],
)
async def test_garbage_is_an_error_that_the_session_survives(start_server, call, message, code):
    async with start_server() as server, call(server) as caller:
        await caller.configure()
        if isinstance(message, bytes):
            await caller.socket.send_bytes(message)
        else:
            await caller.socket.send_str(message)
        assert (await caller.until("error"))["error"]["code"] == code
        await caller.converse(2)


async def test_text_that_is_not_utf8_is_an_error_too(start_server, call):
    async with start_server() as server, call(server) as caller:
        await caller.socket.send_frame(b'{"type": "\xff"}', aiohttp.WSMsgType.TEXT)
        assert (await caller.until("error"))["error"]["code"] == "invalid_json"
        await caller.configure()


async def test_a_message_too_large_closes_with_1009_and_harms_nobody(start_server, call):
    async with (
        start_server(max_message_bytes=100_000) as server,
        call(server) as caller,
        call(server) as other,
    ):
        await caller.configure()
        await other.configure()
        await caller.socket.send_str("x" * 200_000)
        assert await caller.close_code() == 1009
        await other.converse(3)
        async with call(server) as third:
            await third.configure()


async def test_control_messages_have_a_rate_and_audio_has_none(start_server, call):
    async with start_server(control_rate=10) as server, call(server) as caller:
        await caller.configure()
        await caller.converse(60)
        for number in range(40):
            await caller.send("session.heartbeat", event_id=f"beat-{number}")
        await caller.append(np.zeros(FRAME))
        await caller.until("response.output_audio.delta")
        kinds = [event["type"] for event in caller.seen]
        errors = [event["error"] for event in caller.seen if event["type"] == "error"]
        assert 19 <= kinds.count("session.heartbeat_ack") < 40
        assert kinds.count("session.heartbeat_ack") + len(errors) == 40
        assert {error["code"] for error in errors} == {"rate_limit_exceeded"}
        assert {error["type"] for error in errors} == {"rate_limit_error"}
        assert errors[-1]["event_id"] == "beat-39"


async def test_who_goes_on_beyond_the_rate_is_closed_with_1008(start_server, call):
    async with start_server(control_rate=1) as server, call(server) as caller:
        await caller.until("session.created")
        for _ in range(200):
            await caller.socket.send_str("{")
        assert await caller.close_code() == 1008
        codes = [event["error"]["code"] for event in caller.seen if event["type"] == "error"]
        assert codes[0] == "invalid_json"
        assert codes.count("rate_limit_exceeded") >= 100


async def test_reading_pauses_above_the_message_rate_and_nothing_is_lost(start_server, call):
    async with start_server(message_rate=100) as server, call(server) as caller:
        await caller.configure()
        await caller.converse(40)
        assert server.runtime.metrics.frames_in == 40
        async with aiohttp.ClientSession() as http:
            text = await (await http.get(server.address + "/metrics")).text()
    paused = next(line for line in text.splitlines() if line.startswith("duplex_paused_reads_"))
    assert float(paused.split()[1]) > 0


async def test_connections_are_limited(start_server, call):
    async with start_server(max_connections_per_client=2) as server, call(server), call(server):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with call(server):
                pass
        assert caught.value.status == 429


async def test_200_sessions_one_after_another_on_2_slots(start_server, call):
    async with start_server() as server:
        for number in range(200):
            async with call(server) as caller:
                await caller.configure()
                await caller.converse(1, number)
                if number % 2:
                    await caller.send("session.close")
                    await caller.close_code()
        assert await server.runtime.drain(20)
        assert (await server.runtime.engine.stats()).live == 0
        assert server.runtime.metrics.sessions_opened == 200


async def test_draining_refuses_with_1013_and_ends_with_1012(start_server, call):
    async with start_server() as server, call(server) as caller:
        await caller.configure()
        server.runtime.draining = True
        async with call(server) as late:
            error = (await late.until("error"))["error"]
            assert error["code"] == "resource_exhausted"
            assert await late.close_code() == 1013
        async with aiohttp.ClientSession() as http:
            answer = await http.get(server.address + "/ready")
            assert (answer.status, (await answer.json())["reason"]) == (503, "draining")
        await caller.converse(3)
        ending = asyncio.create_task(server.stop())
        assert await caller.close_code() == 1012
        await ending
        assert caller.seen[-1]["reason"] == "server_shutdown"
