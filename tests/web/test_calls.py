import asyncio
import json
import re

import aiohttp
import numpy as np
import pytest

from duplex.errors import internal_error
from media.rtc.mailbox import MAX_MESSAGES
from media.rtc.peer import MAX_SOURCES
from tests.listening import likeness
from tests.media.rtc_client import RATE, Client, speech
from web.context import CONTEXT

KEY, OTHER = "correct-horse-battery", "staple-of-another"
CALLS = "/v1/realtime/calls"


class Caller:
    """A WebRTC client with its events, and the HTTP that made it."""

    def __init__(self, client, http, server, location):
        self.client, self.http, self.server, self.location = client, http, server, location
        self.read = 0
        self.seen = []

    async def send(self, kind, **fields):
        await self.client.opened.wait()
        self.client.channel.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind):
        async with asyncio.timeout(20):
            while True:
                await self.client.until_received(self.read + 1)
                assert len(self.client.messages[self.read].encode()) <= 16 * 1024
                self.seen.append(json.loads(self.client.messages[self.read]))
                self.read += 1
                if self.seen[-1]["type"] == kind:
                    return self.seen[-1]

    async def hang_up(self):
        return (await self.http.post(self.server.address + self.location + "/hangup")).status

    def kinds(self):
        return [event["type"] for event in self.seen]


def form(offer, session):
    data = aiohttp.FormData()
    data.add_field("sdp", offer, content_type="application/sdp")
    data.add_field("session", json.dumps(session), content_type="application/json")
    return data


@pytest.fixture
async def dial():
    """`await dial(server, pcm)`: a call that is answered; all are closed at the end."""
    clients, sessions = [], []

    async def connect(server, pcm=None, *, path=CALLS, session=None, key=None):
        client = Client(pcm)
        clients.append(client)
        http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"} if key else {})
        sessions.append(http)
        offer = await client.offer()
        sdp = {"headers": {"Content-Type": "application/sdp"}, "data": offer}
        body = sdp if session is None else {"data": form(offer, session)}
        async with http.post(server.address + path, **body) as answer:
            assert answer.status == 201, await answer.text()
            assert answer.content_type == "application/sdp"
            await client.answered(await answer.text())
            return Caller(client, http, server, answer.headers["Location"])

    connect.clients = clients
    yield connect
    for client in clients:
        await client.close()
    for http in sessions:
        await http.close()


async def free(server):
    return (await server.runtime.engine.stats()).free


async def all_free(server, slots=2):
    async with asyncio.timeout(10):
        while await free(server) < slots:
            await asyncio.sleep(0.01)


async def metrics_at_the_end(caller):
    """The metrics page when the call has been counted."""
    async with asyncio.timeout(10):
        while True:
            async with caller.http.get(caller.server.address + "/metrics") as answer:
                if "duplex_calls_total{" in (text := await answer.text()):
                    return text
            await asyncio.sleep(0.01)


def heard(client):
    """What came back, at 24 kHz."""
    return np.concatenate(client.heard)[::2]


async def listen(client, seconds):
    """Waits until so much audio has come."""
    async with asyncio.timeout(20):
        while sum(map(len, client.heard)) < 2 * RATE * seconds:
            await asyncio.sleep(0.01)


async def test_echo_over_a_call_in_full_duplex(start_server, dial):
    pcm = speech(1.5)
    async with start_server() as server:
        caller = await dial(server, pcm, path=CALLS + "?duplex=1")
        created = (await caller.until("session.created"))["session"]
        assert created["input_clock"] == "server"
        assert created["capabilities"]["chunk_period_ms"] == 80
        assert not created["capabilities"]["supports_session_resume"]
        response = (await caller.until("response.created"))["response"]["id"]
        started = await caller.until("output_audio_buffer.started")
        assert started["response_id"] == response
        await listen(caller.client, 2.5)
        assert likeness(heard(caller.client), pcm, RATE) > 0.9
        await caller.send("session.close")
        assert (await caller.until("session.closed"))["reason"] == "client_close"
        await caller.client.until(lambda: caller.client.pc.connectionState == "closed")
        assert "response.output_audio.delta" not in caller.kinds()
        numbers = [event["server_event_seq"] for event in caller.seen]
        assert numbers == list(range(1, len(numbers) + 1))
        await all_free(server)
        assert 'duplex_calls_total{reason="local"} 1.0' in await metrics_at_the_end(caller)


async def test_packets_of_too_many_sources_are_in_the_metrics(start_server, dial):
    async with start_server() as server:
        caller = await dial(server, speech(1.0), path=CALLS + "?duplex=1")
        await caller.until("session.created")
        await caller.client.pretend(50)
        await caller.send("session.close")  # the same way as the packets, and after them
        await caller.until("session.closed")
        refused = r"^duplex_call_packets_refused_total (\S+)$"
        (count,) = re.findall(refused, await metrics_at_the_end(caller), re.MULTILINE)
        assert 100 - MAX_SOURCES <= float(count) < 100


async def test_a_session_in_turns_tells_of_its_playback(start_server, dial):
    pcm = np.concatenate((speech(0.8), np.zeros(3 * RATE, np.float32)))
    async with start_server() as server:
        caller = await dial(server, pcm, session={"audio": {"input": {"turn_detection": None}}})
        assert "capabilities" not in (await caller.until("session.created"))["session"]
        response = (await caller.until("response.created"))["response"]["id"]
        assert (await caller.until("output_audio_buffer.started"))["response_id"] == response
        await caller.until("response.done")
        assert (await caller.until("output_audio_buffer.stopped"))["response_id"] == response
        assert await caller.hang_up() == 200


async def test_a_cancelled_response_is_taken_back_from_the_peer(start_server, dial):
    async with start_server() as server:
        session = {"audio": {"input": {"turn_detection": None}}}
        caller = await dial(server, speech(3.0), session=session)
        response = (await caller.until("response.created"))["response"]["id"]
        await caller.until("output_audio_buffer.started")
        await caller.send("response.cancel")
        assert (await caller.until("output_audio_buffer.cleared"))["response_id"] == response
        done = (await caller.until("response.done"))["response"]
        assert (done["id"], done["status"]) == (response, "cancelled")
        await caller.send("response.cancel", event_id="late")
        assert (await caller.until("error"))["error"]["event_id"] == "late"
        await caller.send("output_audio_buffer.clear")
        await caller.until("output_audio_buffer.cleared")
        assert caller.kinds().count("output_audio_buffer.cleared") == 2


async def test_an_interrupt_in_full_duplex_clears_and_goes_on(start_server, dial):
    async with start_server() as server:
        caller = await dial(server, speech(4.0), path=CALLS + "?duplex=1")
        first = await caller.until("output_audio_buffer.started")
        await caller.send("barge_in")
        cleared = await caller.until("output_audio_buffer.cleared")
        again = await caller.until("output_audio_buffer.started")
        assert first["response_id"] == cleared["response_id"] == again["response_id"]
        await caller.send("output_audio_buffer.clear")
        await caller.until("output_audio_buffer.cleared")
        await caller.until("output_audio_buffer.started")
        assert caller.kinds().count("output_audio_buffer.cleared") == 2


async def test_settings_come_with_the_offer_and_later(start_server, dial):
    async with start_server() as server:
        asked = {"instructions": "be brief", "input_clock": "client"}
        caller = await dial(server, session=asked, path=CALLS + "?duplex=1&model=other")
        created = (await caller.until("session.created"))["session"]
        instead = {entry["field"]: entry["in_force"] for entry in created["substitutions"]}
        assert instead == {
            "model": "echo",
            "session.instructions": None,
            "input_clock": "server",
        }
        await caller.send("session.update", session={"overlap_policy": "barge_in_on_speech"})
        await caller.until("session.updated")
        updated = (await caller.until("session.updated"))["session"]
        assert updated["overlap_policy"] == "barge_in_on_speech"


async def test_bad_messages_are_answered_by_their_id_and_end_nothing(start_server, dial):
    async with start_server() as server:
        caller = await dial(server)
        await caller.until("session.updated")
        await caller.send("input_audio_buffer.append", audio="AAAA", event_id="a")
        await caller.send("nonsense", event_id="b")
        caller.client.channel.send(b"\x00\x01")
        caller.client.channel.send("{")
        errors = [(await caller.until("error"))["error"] for _ in range(4)]
        assert [error["code"] for error in errors] == (
            ["unknown_event", "unknown_event", "invalid_json", "invalid_json"]
        )
        assert [error.get("event_id") for error in errors] == ["a", "b", None, None]
        assert await caller.hang_up() == 200


async def test_a_flood_of_messages_ends_the_call(start_server, dial):
    async with start_server(control_rate=1) as server:
        caller = await dial(server)
        await caller.client.opened.wait()
        for _ in range(150):
            await caller.send("session.heartbeat")
        await caller.client.until(lambda: caller.client.pc.connectionState == "closed")
        await all_free(server)


async def test_acknowledgements_count_against_the_message_rate(start_server, dial):
    async with start_server(message_rate=20) as server:
        counters = server._runner.app[CONTEXT].counters
        caller = await dial(server)
        await caller.until("session.updated")
        for number in range(10):
            await caller.send("session.event_ack", server_event_seq=number)
        await caller.send("nonsense", event_id="after")
        assert (await caller.until("error"))["error"]["event_id"] == "after"
        assert counters.paused_reads >= 5


async def test_a_flood_of_acknowledgements_ends_the_call(start_server, dial):
    async with start_server(message_rate=10) as server:
        caller = await dial(server)
        await caller.client.opened.wait()
        for number in range(2 * MAX_MESSAGES):
            await caller.send("session.event_ack", server_event_seq=number)
        await caller.client.until(lambda: caller.client.pc.connectionState == "closed")
        await all_free(server)
        await metrics_at_the_end(caller)
        assert server._runner.app[CONTEXT].counters.calls_ended == {"overflow": 1}


async def test_long_messages_are_cut_to_what_a_channel_carries(start_server, dial):
    async with start_server() as server:
        caller = await dial(server)
        await caller.until("session.updated")
        item = {
            "role": "user",
            "type": "message",
            "content": [{"type": "input_text", "text": "x" * 40_000}],
        }
        await caller.send("conversation.item.create", item=item)
        added = await caller.until("conversation.item.added")
        assert added["cut"] == ["item.content.0.text"]
        assert len(added["item"]["content"][0]["text"]) > 10_000


async def test_without_a_slot_it_is_429_and_hanging_up_gives_one_back(start_server, dial):
    async with start_server(max_sessions=1) as server:
        caller = await dial(server)
        offer = await offer_of(dial)
        status, error = await post(server, offer)
        assert (status, error["code"], error["type"]) == (429, "resource_exhausted", "server_error")
        assert len(server.runtime.sessions) == 1
        assert await caller.hang_up() == 200
        assert await caller.hang_up() == 404
        await all_free(server, 1)
        await dial(server)


async def test_a_call_is_a_connection_and_no_more_than_allowed(start_server, dial):
    async with start_server(max_connections_per_client=1) as server:
        caller = await dial(server)
        status, error = await post(server, await offer_of(dial))
        assert (status, error["code"]) == (429, "too_many_connections")
        await caller.hang_up()
        await all_free(server)
        await dial(server)


async def test_calls_one_after_the_other_leave_nothing(start_server, dial):
    async with start_server(max_sessions=1) as server:
        for _ in range(8):
            caller = await dial(server, path=CALLS + "?duplex=1")
            await caller.until("session.updated")
            await caller.client.close()
            await all_free(server, 1)
        assert not server.runtime.sessions
        ours = ("call-", "listen-", "speak-", "finish-", "clock-")
        assert [t for t in asyncio.all_tasks() if t.get_name().startswith(ours)] == []


async def test_a_caller_that_vanishes_gives_its_slot_back(start_server, dial):
    async with start_server(max_sessions=1) as server:
        caller = await dial(server)
        await caller.client.connected()
        await caller.until("session.updated")
        caller.client.vanish()
        async with asyncio.timeout(5):
            await all_free(server, 1)


async def test_a_call_ends_with_the_server(start_server, dial):
    async with start_server() as server:
        caller = await dial(server, path=CALLS + "?duplex=1")
        await caller.until("session.updated")
    assert (await caller.until("session.closed"))["reason"] == "server_shutdown"


async def test_the_engines_death_ends_the_call(start_server, dial):
    async with start_server() as server:
        caller = await dial(server, path=CALLS + "?duplex=1")
        await caller.until("session.updated")
        (session,) = server.runtime.sessions.values()
        session.abort(internal_error(), "internal_error")
        assert (await caller.until("error"))["error"]["code"] == "internal_error"
        assert (await caller.until("session.closed"))["reason"] == "internal_error"
        await caller.client.until(lambda: caller.client.pc.connectionState == "closed")


async def offer_of(dial):
    client = Client()
    dial.clients.append(client)
    return await client.offer()


async def post(server, data, *, content_type="application/sdp", headers=None, path=CALLS):
    headers = {"Content-Type": content_type} | (headers or {}) if content_type else headers
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.address + path, data=data, headers=headers) as answer,
    ):
        return answer.status, (await answer.json())["error"]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        ("", "application/sdp", 400, "invalid_sdp"),
        ("v=0\r\n", "application/sdp", 400, "invalid_sdp"),
        (b"\xff\xfe", "application/sdp", 400, "invalid_sdp"),
        ("v=0" + "x" * 70_000, "application/sdp", 413, "request_too_large"),
        ("{}", "application/json", 415, "unsupported_media_type"),
        ("--a\r\n\r\nb\r\n--a--", "multipart/form-data; boundary=a", 400, "missing_parameter"),
        ("nothing", "multipart/form-data", 400, "invalid_multipart"),
        ("--b\r\n", "multipart/form-data; boundary=a", 400, "invalid_multipart"),
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(
    start_server, body, content_type, status, code
):
    async with start_server() as server:
        got, error = await post(server, body, content_type=content_type)
        assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
        assert not server.runtime.sessions
        assert await free(server) == 2


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"voice": 3}, "session.voice"),
        ({"tools": [{}]}, "session.tools"),
        ({"zzz": 1}, "session.zzz"),
        ([], "session"),
    ],
)
async def test_a_bad_session_names_its_field(start_server, dial, session, param):
    async with start_server() as server:
        offer = await offer_of(dial)
        status, error = await post(server, form(offer, session), content_type=None)
        assert (status, error["param"]) == (400, param)
        assert await free(server) == 2


async def test_calls_are_their_makers_own(start_server, dial):
    async with start_server(api_keys=[KEY, OTHER]) as server:
        offer = await offer_of(dial)
        status, error = await post(server, offer)
        assert (status, error["code"]) == (401, "invalid_api_key")
        caller = await dial(server, key=KEY)
        headers = {"Authorization": f"Bearer {OTHER}"}
        status, error = await post(
            server, b"", content_type=None, headers=headers, path=caller.location + "/hangup"
        )
        assert (status, error["code"]) == (404, "call_not_found")
        assert await caller.hang_up() == 200
