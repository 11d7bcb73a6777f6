"""The page's files, the origins that may use the server, and HTTPS."""

import re
import ssl
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

import web.page
from web.tls import BadCertificate, self_signed

STATIC = Path(__file__).parents[2] / "web" / "static"
KEY = "correct-horse-battery"
FRIEND = "https://friend.example"


async def test_every_file_of_the_page_is_served_and_asks_no_other_host(start_server):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        for path in sorted(STATIC.rglob("*.*")):
            name = path.relative_to(STATIC).as_posix()
            async with http.get(f"{server.address}/static/{name}") as answer:
                assert answer.status == 200
                assert await answer.read() == path.read_bytes()
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
                kept = {"If-None-Match": answer.headers["ETag"]}
            async with http.get(f"{server.address}/static/{name}", headers=kept) as answer:
                assert answer.status == 304
            for found in re.findall(r"https?://[^\s\"'`)]+", path.read_text("utf-8")):
                assert re.match(r"https?://(www\.w3\.org/|localhost|\$\{)", found), (name, found)
        async with http.get(server.address) as answer:
            assert await answer.read() == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize(
    "path",
    ["../app.py", "%2e%2e/app.py", "page", "none.js", "/etc/passwd", "page/../../app.py", "%00"],
)
async def test_nothing_else_is(start_server, path):
    async with start_server() as server, aiohttp.ClientSession() as http:
        answer = await http.get(f"{server.address}/static/{path}")
        assert answer.status == 404


async def test_nothing_beside_the_page_is_served(start_server, tmp_path, monkeypatch):
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "inside.html").write_text("inside")
    (tmp_path / "outside.html").write_text("outside")
    monkeypatch.setattr(web.page, "_ROOT", tmp_path / "static")
    async with start_server() as server, aiohttp.ClientSession() as http:
        for name, status in (("inside.html", 200), ("..%2Foutside.html", 404)):
            answer = await http.get(URL(f"{server.address}/static/{name}", encoded=True))
            assert answer.status == status


def test_what_the_page_names_is_there():
    """Every id that a script asks for is in the page, and every module that it imports exists."""
    ids = set(re.findall(r'id="([\w-]+)"', (STATIC / "index.html").read_text("utf-8")))
    for script in (STATIC / "page").glob("*.js"):
        code = script.read_text("utf-8")
        assert set(re.findall(r'(?:\$|field|getElementById)\("([\w-]+)"\)', code)) <= ids
        for module in re.findall(r'from "\./([\w.]+)"', code):
            assert (script.parent / module).exists()


async def ask_first(http, server, origin, path="/v1/realtime/calls"):
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-openai-agents-sdk",
    }
    return await http.options(server.address + path, headers=headers)


async def test_an_allowed_page_may_ask_and_read(start_server):
    async with (
        start_server(api_keys=[KEY], allowed_origins=[FRIEND]) as server,
        aiohttp.ClientSession() as http,
    ):
        answer = await ask_first(http, server, FRIEND)  # without a key: browsers send none here
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == FRIEND
        allowed = answer.headers["Access-Control-Allow-Headers"]
        assert "Authorization" in allowed
        assert "Content-Type" in allowed
        assert "x-openai-agents-sdk" in allowed
        answer = await http.post(
            server.address + "/v1/realtime/calls", data="x", headers={"Origin": FRIEND}
        )
        assert answer.status == 401  # and the page may read why
        assert answer.headers["Access-Control-Allow-Origin"] == FRIEND
        assert answer.headers["Access-Control-Expose-Headers"] == "Location"
        assert answer.headers["Vary"] == "Origin"


async def test_others_may_not(start_server):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        for answer in (
            await ask_first(http, server, "https://foe.example"),
            await http.get(
                server.address + "/v1/models", headers={"Origin": "https://foe.example"}
            ),
        ):
            assert answer.status == 403
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert (await answer.json())["error"]["code"] == "origin_not_allowed"


@pytest.mark.parametrize(("keys", "status"), [([KEY], 200), ([], 403)])
async def test_our_page_may_have_another_name_where_keys_are_set(start_server, keys, status):
    """Without keys a page behind a rebound name would pass for ours."""
    async with start_server(api_keys=keys) as server, aiohttp.ClientSession() as http:
        headers = {
            "Host": "duplex.lan:8091",
            "Origin": "https://duplex.lan:8091",
            "Authorization": f"Bearer {KEY}",
        }
        assert (await http.get(server.address + "/v1/models", headers=headers)).status == status


async def test_https_with_a_certificate_of_our_own(start_server):
    trusted = ssl.create_default_context()
    trusted.check_hostname = False
    trusted.verify_mode = ssl.CERT_NONE
    async with start_server(tls="self-signed") as server, aiohttp.ClientSession() as http:
        assert server.address.startswith("https://")
        async with http.get(server.address + "/health", ssl=trusted) as answer:
            assert answer.status == 200
        async with http.ws_connect(
            server.address + "/v1/realtime", ssl=trusted, origin=server.address
        ) as socket:
            assert (await socket.receive_json())["type"] == "session.created"


async def test_https_with_the_operators_files(start_server, tmp_path):
    pem = tmp_path / "both.pem"
    pem.write_bytes(self_signed(["localhost", "127.0.0.1", "::1"]))
    trusted = ssl.create_default_context(cafile=pem)
    async with start_server(tls=[str(pem), str(pem)]) as server, aiohttp.ClientSession() as http:
        assert (await http.get(server.address + "/health", ssl=trusted)).status == 200


async def test_files_that_are_no_certificate(start_server, tmp_path):
    pem = tmp_path / "no.pem"
    pem.write_text("nothing")
    with pytest.raises(BadCertificate, match=r"tls: .*no\.pem"):
        async with start_server(tls=[str(pem), str(pem)]):
            pass
