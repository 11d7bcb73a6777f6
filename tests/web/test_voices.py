"""Voices: which there are, and a caller's own."""

import base64
import io
import wave

import aiohttp
import msgspec
import numpy as np
import pytest

from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine


class Voiced(EchoModel):
    """An echo that has voices, takes recordings, and keeps what it was told."""

    def __init__(self):
        super().__init__(2)
        self._spec = msgspec.structs.replace(
            self._spec,
            voices=("NATF2", "NATM1"),
            default_voice="NATM1",
            voice_audio=True,
            persona=True,
        )
        self.told = []
        self.rows = {}

    def check(self, params):
        self.told.append(params)

    def prefill(self, row, params):
        self.rows[row] = (params.persona, params.voice)
        return iter(())


@pytest.fixture
def voiced():
    return Voiced()


@pytest.fixture
def engine(voiced):
    return InProcessEngine(lambda: voiced, EngineConfig(model="echo"))


async def voices_of(server):
    async with aiohttp.ClientSession() as http:
        answer = await http.get(server.address + "/v1/audio/voices")
        assert answer.status == 200
        return await answer.json()


async def test_the_list(start_server, engine):
    async with start_server(engine=engine) as server:
        assert await voices_of(server) == {
            "object": "list",
            "data": [
                {"id": "NATF2", "object": "voice", "name": "NATF2", "default": False},
                {"id": "NATM1", "object": "voice", "name": "NATM1", "default": True},
            ],
            "default": "NATM1",
        }


async def test_a_model_with_one_voice_lists_none(start_server):
    async with start_server() as server:
        assert await voices_of(server) == {"object": "list", "data": [], "default": None}


async def test_every_wire_takes_a_voice(start_server, engine, voiced, call):
    async with start_server(engine=engine) as server:
        async with call(server) as caller:
            await caller.configure(voice="NATF2.pt")
        address = server.address.replace("http", "ws")
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(address + "/api/chat?voice_prompt=NATF2.pt") as socket:
                assert (await socket.receive()).data == b"\0"
            async with http.ws_connect(address + "/v1/audio/duplex") as socket:
                await socket.send_json({"type": "open", "voice": "NATF2"})
                assert (await socket.receive_json())["type"] == "ready"
    assert [params.voice for params in voiced.told] == ["NATF2"] * 3


async def test_callers_who_come_at_once_keep_their_personas_apart(
    start_server, engine, voiced, call
):
    async with (
        start_server(engine=engine) as server,
        call(server) as one,
        call(server) as two,
        call(server) as three,
    ):
        for caller, name, voice in ((one, "Ada", "NATF2"), (two, "Bo", "NATM1")):
            await caller.send("session.update", session={"instructions": name, "voice": voice})
        for caller, name, voice in ((one, "Ada", "NATF2"), (two, "Bo", "NATM1")):
            session = (await caller.until("session.updated"))["session"]
            assert (session["instructions"], session["audio"]["output"]["voice"]) == (name, voice)
        await three.send("session.update", session={"instructions": "Eve", "voice": "NATF2"})
        assert await three.close_code() == 1013
        assert sorted(voiced.rows.values()) == [("Ada", "NATF2"), ("Bo", "NATM1")]
        await two.send("session.close")
        await two.close_code()
        async with call(server) as four:
            await four.configure()
            assert sorted(voiced.rows.values(), key=str) == [("Ada", "NATF2"), (None, None)]


@pytest.mark.parametrize("voice", ["../NATF2", "/etc/passwd", "NATF2/../../x.pt"])
async def test_a_voice_is_no_path(start_server, engine, voiced, call, voice):
    async with start_server(engine=engine) as server:
        async with call(server) as caller:
            await caller.send("session.update", session={"voice": voice})
            error = (await caller.until("error"))["error"]
            assert (error["code"], error["param"]) == ("invalid_value", "session.voice")
        address = server.address.replace("http", "ws") + "/api/chat"
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(address, params={"voice_prompt": voice}) as socket,
        ):
            assert (await socket.receive()).data[0] == 5
            await socket.receive()
            assert socket.close_code == 1008
    assert voiced.told == []


async def test_a_recording_of_ten_mebibytes_fits(start_server, engine, voiced, call):
    pcm = np.random.default_rng(0).integers(-9_000, 9_000, 5_200_000, np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(4)
        out.setsampwidth(2)
        out.setframerate(48_000)
        out.writeframes(pcm.tobytes())
    url = "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
    async with start_server(engine=engine) as server, call(server) as caller:
        await caller.configure(ref_audio=url)
        await caller.converse(2)
        await caller.send("session.update", session={"ref_audio": url + "A" * (1 << 20)})
        error = (await caller.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "session.ref_audio")
        assert "10 MiB" in error["message"]
    assert len(voiced.told[-1].voice_audio) == 4 * 1_300_000 // 2


async def test_a_model_without_recordings_says_so(start_server, call):
    async with start_server() as server, call(server) as caller:
        await caller.send("session.update", session={"ref_audio": "data:audio/wav;base64,AAAA"})
        updated = await caller.until("session.updated")
        (substitution,) = updated["session"]["substitutions"]
        assert (substitution["field"], substitution["in_force"]) == ("session.ref_audio", None)
