import base64
import hashlib
import hmac
import time

import aiohttp

SECRET = "staple-of-the-relay"


async def ask(server):
    async with aiohttp.ClientSession() as http, http.get(server.address + "/v1/ice") as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return (await answer.json())["iceServers"]


async def test_servers_are_told_as_they_are(start_server):
    servers = [{"urls": ["turn:a:3478"], "username": "u", "credential": "c"}, {"urls": ["stun:b"]}]
    async with start_server(ice_servers=servers) as server:
        assert await ask(server) == servers


async def test_a_shared_secret_makes_credentials_that_expire(start_server):
    servers = [{"urls": "turn:a:3478", "secret": SECRET, "ttl_s": 600}]
    async with start_server(ice_servers=servers) as server:
        (card,) = await ask(server)
    expires, name = card["username"].split(":")
    assert (name, card["urls"], len(card)) == ("duplex", ["turn:a:3478"], 3)
    assert 590 < int(expires) - time.time() <= 600
    digest = hmac.new(SECRET.encode(), card["username"].encode(), hashlib.sha1).digest()
    assert base64.b64decode(card["credential"]) == digest
