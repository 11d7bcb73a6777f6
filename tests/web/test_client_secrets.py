import time

import aiohttp
import pytest

from duplex.settings import SettingsPatch
from media.clock import VirtualClock
from web import secrets as secrets_module
from web.errors import ApiError
from web.secrets import Secrets

KEY, OTHER = "correct-horse-battery", "staple-of-another"
ROUTE = "/v1/realtime/client_secrets"


async def make(server, key=KEY, **fields):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.address + ROUTE, json=fields, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def protocols(secret):
    return ["realtime", f"openai-insecure-api-key.{secret}"]


async def test_a_secret_opens_sessions_with_its_settings(start_server):
    async with start_server(api_keys=[KEY], max_sessions=3) as server:
        session = {"type": "realtime", "overlap_policy": "listen_only", "instructions": "be brief"}
        status, body = await make(server, session=session, expires_after={"seconds": 60})
        assert status == 200
        assert body["value"].startswith("ek_")
        assert 58 <= body["expires_at"] - time.time() <= 61
        assert body["session"]["overlap_policy"] == "listen_only"
        async with aiohttp.ClientSession() as http:
            for _ in range(2):  # until it expires, not once
                async with http.ws_connect(
                    server.address + "/v1/realtime", protocols=protocols(body["value"])
                ) as socket:
                    assert socket.protocol == "realtime"
                    created = (await socket.receive_json())["session"]
                    assert created["overlap_policy"] == "listen_only"
                    assert created["substitutions"][0]["field"] == "session.instructions"
                    await socket.send_json(
                        {
                            "type": "session.update",
                            "session": {"overlap_policy": "barge_in_on_speech"},
                        }
                    )
                    updated = (await socket.receive_json())["session"]
                    assert updated["overlap_policy"] == "barge_in_on_speech"


@pytest.mark.parametrize(("asked", "in_force"), [(10, 10), (86_400, 60), (None, 60)])
async def test_a_secret_lifts_no_limit_of_the_servers(start_server, asked, in_force):
    async with start_server(api_keys=[KEY], idle_timeout_s=60) as server:
        _, body = await make(server, session={"type": "realtime", "idle_timeout_s": asked})
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(
                server.address + "/v1/realtime", protocols=protocols(body["value"])
            ) as socket,
        ):
            created = (await socket.receive_json())["session"]
            assert created["idle_timeout_s"] == in_force


async def test_a_secret_opens_what_a_page_needs_and_no_more(start_server):
    async with start_server(api_keys=[KEY]) as server, aiohttp.ClientSession() as http:
        _, body = await make(server)
        headers = {"Authorization": f"Bearer {body['value']}"}
        for path in ("/v1/models", "/v1/ice", "/v1/audio/voices"):
            assert (await http.get(server.address + path, headers=headers)).status == 200
        assert (await http.get(server.address + "/metrics", headers=headers)).status == 403
        assert (await make(server, key=body["value"]))[0] == 403


@pytest.mark.parametrize("keys", [[], [KEY]])
async def test_what_looks_like_a_secret_and_is_none_is_401(start_server, keys):
    async with start_server(api_keys=keys) as server, aiohttp.ClientSession() as http:
        headers = {"Authorization": "Bearer ek_nothing"}
        answer = await http.get(server.address + "/v1/models", headers=headers)
        assert answer.status == 401
        assert "expired" in (await answer.json())["error"]["message"]


async def test_to_make_one_takes_a_key(start_server):
    async with start_server(api_keys=[KEY]) as server:
        status, body = await make(server, key=None)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": []}, "session"),
        ({"session": {"voice": 1}}, "session.voice"),
        ({"session": {"tools": [{}]}}, "session.tools"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(start_server, fields, param):
    async with start_server() as server:
        status, body = await make(server, key=None, **fields)
        assert (status, body["error"]["param"]) == (400, param)


async def test_a_body_that_is_no_json_or_too_long(start_server):
    async with start_server() as server, aiohttp.ClientSession() as http:
        for data, status in (("{", 400), (b"\xff", 400), ("x" * 70_000, 413)):
            assert (await http.post(server.address + ROUTE, data=data)).status == status
        assert (await http.post(server.address + ROUTE)).status == 200


async def test_a_secret_expires_to_the_second_and_is_forgotten():
    clock = VirtualClock()
    secrets = Secrets(clock)
    value = secrets.make("someone", 10, SettingsPatch(), ())
    await clock.advance(9.99)
    assert secrets.find(value).client == "someone"
    await clock.advance(0.01)
    assert secrets.find(value) is None
    assert secrets.find("ek_other") is None


async def test_there_is_a_limit_to_secrets_in_force(monkeypatch):
    monkeypatch.setattr(secrets_module, "MAX_SECRETS", 3)
    clock = VirtualClock()
    secrets = Secrets(clock)
    for _ in range(3):
        secrets.make("someone", 10, SettingsPatch(), ())
    with pytest.raises(ApiError) as caught:
        secrets.make("someone", 10, SettingsPatch(), ())
    assert caught.value.status == 429
    await clock.advance(10)
    assert secrets.find(secrets.make("someone", 10, SettingsPatch(), ()))
