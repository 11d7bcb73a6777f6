import asyncio
import logging

import aiohttp
import pytest

KEY = "correct-horse-battery"
OTHER = "staple-of-another"


def subprotocols(*names):
    return ", ".join(names)


@pytest.mark.parametrize("path", ["/health", "/ready", "/"])
async def test_what_balancers_and_people_ask_is_open(start_server, path):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        answer = await http.get(server.address + path)
        assert answer.status == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v1/realtime?duplex=1", "/v1/duplex"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong-key"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Sec-WebSocket-Protocol": "realtime"},
        {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.wrong-key"},
    ],
)
async def test_without_a_known_key_the_rest_is_401(start_server, path, headers):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        answer = await http.get(server.address + path, headers=headers)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        error = (await answer.json())["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert "wrong-key" not in error["message"]


async def test_401_comes_before_the_upgrade(start_server):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(server.address + "/v1/realtime?duplex=1")
        assert caught.value.status == 401


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_every_key_opens(start_server, key, scheme):
    async with start_server(api_keys=[KEY, OTHER]) as server, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"{scheme} {key}"}
        answer = await http.get(server.address + "/v1/models", headers=headers)
        assert answer.status == 200
        url = server.address + "/v1/realtime?duplex=1"
        async with http.ws_connect(url, headers=headers) as socket:
            assert (await socket.receive_json())["type"] == "session.created"


async def test_a_browser_shows_its_key_as_subprotocol_and_only_realtime_is_selected(
    start_server, caplog
):
    caplog.set_level(logging.DEBUG)
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        url = server.address + "/v1/realtime?duplex=1"
        key = f"openai-insecure-api-key.{KEY}"
        async with http.ws_connect(url, protocols=("realtime", key, "openai-beta.v1")) as socket:
            assert socket.protocol == "realtime"
        async with http.ws_connect(url, protocols=(key,)) as socket:
            assert socket.protocol is None
            assert (await socket.receive_json())["type"] == "session.created"
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:{port}", True),
        ("http://127.0.0.1:{port}", True),
        ("https://localhost:{port}", True),
        ("http://[::1]:{port}", True),
        ("https://voice.example.com", True),
        ("https://VOICE.example.com", True),
        ("http://voice.example.com", False),
        ("https://voice.example.com.evil.example", False),
        ("http://localhost:1", False),
        ("http://localhost", False),
        ("null", False),
        ("", False),
    ],
)
async def test_pages_of_other_origins_are_403(start_server, origin, allowed):
    async with (
        start_server(allowed_origins=["https://voice.example.com"]) as server,
        aiohttp.ClientSession() as http,
    ):
        headers = {"Origin": origin.format(port=server.port)}
        url = server.address + "/v1/realtime?duplex=1"
        if allowed:
            async with http.ws_connect(url, headers=headers) as socket:
                assert (await socket.receive_json())["type"] == "session.created"
        else:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await http.ws_connect(url, headers=headers)
            assert caught.value.status == 403


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"Authorization: Bearer \xff\xfe", 401), (b"Origin: http://\xff\xfe", 403)],
)
@pytest.mark.parametrize("ek", [b"", b"ek_"])
async def test_headers_that_are_no_text_are_refused_like_others(start_server, header, status, ek):
    async with start_server(api_keys=[KEY]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        header = header.replace(b"Bearer ", b"Bearer " + ek)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: here\r\n" + header + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 %d %b\r\n" % (
            status,
            {401: b"Unauthorized", 403: b"Forbidden"}[status],
        )
        writer.close()


async def test_who_is_turned_away_is_counted(start_server):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        await http.get(server.address + "/v1/models")
        headers = {"Authorization": f"Bearer {KEY}"}
        text = await (await http.get(server.address + "/metrics", headers=headers)).text()
        assert 'duplex_requests_refused_total{code="invalid_api_key"} 1.0' in text
