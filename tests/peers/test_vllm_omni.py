"""The duplex clients of the published `vllm-omni` wheel, unmodified, against a running server.

Judged with vllm-omni 0.30.0, installed without its dependencies. Its parent packages import vLLM
and torch, so they are stood in for by empty ones here; the client classes are the wheel's own.
Quirks: the client sends `session.event_ack` for every numbered event; it opens with autostart=0,
waits for `session.created` and takes any `error` before it as a refusal; it reads GA names only;
its older helper (`experimental.fullduplex.client`) reads the output rate from the deltas.
"""

import asyncio
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

FRAME = 1_920
FOUND = importlib.util.find_spec("vllm_omni")


def load(name):
    """A module of the wheel, below parents that import nothing."""
    assert FOUND is not None, "install it: pip install --no-deps vllm-omni==0.30.0"
    root = Path(FOUND.submodule_search_locations[0])
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules:
            stand_in = types.ModuleType(parent)
            stand_in.__path__ = [str(root.joinpath(*parts[1:depth]))]
            sys.modules[parent] = stand_in
    return importlib.import_module(name)


def stand_in():
    """Loads the client's module, below stand-ins for what it doesn't need here."""
    metrics = types.ModuleType("vllm_omni.metrics")
    metrics.__path__ = []
    definitions = types.ModuleType("vllm_omni.metrics.definitions")
    definitions.compute_audio_rtf = lambda *args, **kwargs: None
    sys.modules.setdefault("vllm_omni.metrics", metrics)
    sys.modules.setdefault("vllm_omni.metrics.definitions", definitions)
    return load("vllm_omni.clients.duplex")


@pytest.fixture(scope="module")
def client():
    return stand_in()


@pytest.fixture(scope="module")
def personaplex(client):
    return load("vllm_omni.clients.personaplex")


def sound(frames, seed=0):
    made = np.random.default_rng(seed).uniform(-0.3, 0.3, FRAME * frames)
    return made.astype(np.float32)


@pytest.fixture(params=["echo", "tiny"])
def server(request, start_process):
    with start_process(request.param, "--max-sessions", "2") as running:
        yield running


class Caller:
    """One conversation: streams paced frames and keeps what comes."""

    def __init__(self, client, server, config, dialect="ga", pace_s=0.08):
        url = server.address.replace("http", "ws") + f"/v1/realtime?dialect={dialect}"
        self.connection = client.DuplexClient(url, model="m", config=config)
        self.pace_s = pace_s
        self.frames, self.responses, self.errors = [], set(), []
        self.sent = 0

    async def __aenter__(self):
        await self.connection.__aenter__()
        self.reader = asyncio.create_task(self.read())
        return self

    async def __aexit__(self, *exc):
        await self.connection.__aexit__(*exc)
        await asyncio.wait_for(self.reader, 20)

    async def read(self):
        async for event in self.connection.events():
            if event.type == "error":
                self.errors.append(event.code)
            if event.response_id:
                self.responses.add(event.response_id)
            if event.audio is not None and event.type.endswith("audio.delta"):
                self.frames.append(event.audio)

    async def stream(self, pcm):
        for frame in pcm.reshape(-1, FRAME):
            await self.connection.append_audio(frame.tobytes())
            self.sent += 1
            await asyncio.sleep(self.pace_s)


@pytest.mark.parametrize("dialect", ["ga", "beta"])
async def test_the_acceptance_run(client, personaplex, server, dialect):
    def config(persona):
        return personaplex.create_duplex_session_config(
            voice=None, persona=persona, output_audio=client.AudioFormat("pcm_f32le", 24_000)
        )

    first = Caller(client, server, config("You are kind."), dialect)
    async with first, Caller(client, server, config("You are curt."), dialect) as second:
        with pytest.raises(client.DuplexClientError) as refused:
            async with Caller(client, server, config("You are late."), dialect):
                pass
        assert refused.value.code == "resource_exhausted"
        await asyncio.gather(first.stream(sound(10, 1)), second.stream(sound(10, 2)))
        before = set(second.responses)
        going_on = asyncio.create_task(second.stream(sound(20, 3)))
        await first.connection.close()
        async with Caller(client, server, config("You are next."), dialect) as third:
            await third.stream(sound(10, 4))
        await going_on
    for caller in (first, second, third):
        assert caller.errors == []
        assert {len(frame) for frame in caller.frames} == {FRAME * 4}
        assert 0 <= caller.sent - len(caller.frames) <= 4
        assert len(caller.responses) == 1
    assert second.responses == before
    assert len(first.responses | second.responses | third.responses) == 3


async def test_playback_is_acknowledged(client, start_process):
    with start_process("echo") as server:
        config = client.SessionConfig(
            input_audio=client.AudioFormat("pcm_f32le", 24_000), instructions="Be kind."
        )
        async with Caller(client, server, config, pace_s=0) as caller:
            await caller.stream(sound(10))
            while len(caller.frames) < 10:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(
                caller.connection.wait_for("playback.acknowledged", timeout_s=10)
            )
            await asyncio.sleep(0)
            await caller.connection.ack_playback(400)
            acknowledged = (await waiting).raw
            assert acknowledged["committed_ms"] == 400
            assert acknowledged["item_id"] == "item_" + acknowledged["response_id"]
            assert {acknowledged["response_id"]} == caller.responses


async def test_a_cut_connection_is_resumed(client, start_process):
    with start_process("echo") as server:
        config = client.SessionConfig(
            input_audio=client.AudioFormat("pcm_f32le", 24_000),
            output_audio=client.AudioFormat("pcm_f32le", 24_000),
        )
        pcm = sound(40)
        async with Caller(client, server, config, pace_s=0.01) as caller:
            for part in range(4):
                await caller.stream(pcm[part * 10 * FRAME : (part + 1) * 10 * FRAME])
                while len(caller.frames) < 10 * (part + 1):
                    await asyncio.sleep(0.01)
                resumed = asyncio.create_task(
                    caller.connection.wait_for("session.resumed", timeout_s=20)
                )
                await asyncio.sleep(0)
                caller.connection._ws.transport.abort()
                await resumed
        assert np.array_equal(np.frombuffer(b"".join(caller.frames), "<f4"), pcm)
        assert len(caller.responses) == 1
        assert caller.errors == []


async def test_the_older_helper(client, start_process):
    helper = load("vllm_omni.experimental.fullduplex.client")
    names = [name for name in vars(helper) if name.endswith(("Client", "Session"))]
    connect = next(
        value
        for name in names
        if isinstance(value := getattr(helper, name), type) and hasattr(value, "stream_pcm16")
    )
    with start_process("echo") as server:
        url = helper.build_realtime_url(server.address + "/v1/realtime", "m")
        async with connect(url) as session:
            await session.configure("m", instructions="Be kind.")
            pcm = (np.random.default_rng(0).uniform(-0.3, 0.3, 16_000) * 32767).astype("<i2")
            await session.stream_pcm16(pcm.tobytes(), chunk_ms=80, realtime=False)
            await session.commit()
            await session.close_session()
            assert session.events.errors() == []
            (response,) = session.events.response_ids
            assert len(session.events.audio_bytes(response)) >= 24_000 * 2
            assert session.events.response_is_done(response)
