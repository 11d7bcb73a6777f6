import os
import signal

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from duplex.version import VERSION
from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.fleet import build_engine
from engine.inprocess import InProcessEngine
from engine.model import Room


async def get(server, path):
    async with aiohttp.ClientSession() as http, http.get(server.address + path) as answer:
        return answer.status, await answer.json()


async def samples(server):
    """Every sample by name and labels, as Prometheus would read it."""
    async with aiohttp.ClientSession() as http, http.get(server.address + "/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = await answer.text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_health_says_who_lives(start_server):
    async with start_server() as server:
        status, body = await get(server, "/health")
        assert status == 200
        assert (body["status"], body["version"], body["pid"]) == ("ok", VERSION, os.getpid())
        assert body["uptime_s"] >= 0


async def test_ready_says_what_is_free(start_server, call):
    async with start_server(max_sessions=3) as server, call(server) as caller:
        await caller.configure()
        status, body = await get(server, "/ready")
        assert status == 200
        assert body == {"status": "ready", "model": "echo", "slots": 3, "free": 2}


async def test_an_engine_that_is_gone_is_not_ready(start_server):
    async with start_server() as server:
        await server.runtime.engine.stop()
        status, body = await get(server, "/ready")
        assert (status, body["status"]) == (503, "not_ready")
        assert body["reason"]
        assert (await get(server, "/health"))[0] == 200
        assert (await get(server, "/v1/models"))[1]["data"] == []


async def test_models_have_openais_shape(start_server):
    async with start_server() as server:
        status, body = await get(server, "/v1/models")
        assert (status, body["object"]) == (200, "list")
        (model,) = body["data"]
        assert (model["id"], model["object"]) == ("echo", "model")
        assert model["created"] > 1_700_000_000


async def test_metrics_tell_of_a_conversation(start_server, call):
    async with start_server(max_sessions=3) as server:
        async with call(server) as caller:
            await caller.configure()
            await caller.converse(7)
            await caller.socket.send_str("{")
            await caller.until("error")
            during = await samples(server)
            await caller.send("session.close")
            await caller.close_code()
        after = await samples(server)
    assert during["duplex_ready",] == 1
    assert (during["duplex_slots_max",], during["duplex_slots_used",]) == (3, 1)
    assert during["duplex_slots", "live"] == 1
    assert during["duplex_sessions",] == during["duplex_connections",] == 1
    assert during["duplex_frames_in_total",] == during["duplex_frames_out_total",] == 7
    assert during["duplex_step_seconds_count",] == during["duplex_engine_steps_total",]
    assert during["duplex_step_rows_sum",] == 7
    assert during["duplex_frame_seconds_bucket", "+Inf"] == 7
    assert during["duplex_errors_total", "invalid_json"] == 1
    assert during["duplex_messages_total", "in"] == 9
    assert during["duplex_message_bytes_total", "out"] > 7 * 4 * 1_920
    assert during["duplex_queue_depth", "session_out"] == 0
    for name in ("late", "concealed", "dropped", "stale", "flushed"):
        assert (f"duplex_frames_{name}_total",) in during
    assert during["process_resident_memory_bytes",] > 0
    assert (after["duplex_slots", "live"], after["duplex_sessions",]) == (0, 0)
    assert after["duplex_sessions_closed_total", "client_close"] == 1


async def test_each_device_has_metrics_and_dies_alone(start_server, call):
    config = EngineConfig(model="echo", devices=("cpu", "cpu"), slots=4, threads=1)
    fleet = build_engine(config)
    async with (
        start_server(engine=fleet, max_sessions=4) as server,
        call(server) as first,
        call(server) as second,
    ):
        await first.configure()
        await second.configure()
        await first.converse(3)
        await second.converse(4)
        during = await samples(server)
        assert during["duplex_slots_max",] == 4
        for name, each in {"up": 1, "slots_max": 2, "slots_used": 1}.items():
            for device in ("cpu:0", "cpu:1"):
                assert during[f"duplex_device_{name}", device] == each
        frames = [during["duplex_device_frames_total", device] for device in ("cpu:0", "cpu:1")]
        assert sorted(frames) == [3, 4]
        assert 0 < during["duplex_device_utilisation", "cpu:0"] <= 1
        assert during["duplex_device_step_seconds_total", "cpu:1"] > 0
        assert not any(name.startswith("duplex_device_pages") for name, *_ in during)
        os.kill(fleet._engines[0].pid, signal.SIGKILL)
        assert (await first.until("error"))["error"]["code"] == "internal_error"
        await second.converse(5, seed=1)
        assert (await get(server, "/ready"))[0] == 200
        assert (await samples(server))["duplex_engine_losses_total",] == 1


async def test_an_overloaded_model_refuses_as_a_full_one_does(start_server, call):
    class Full(EchoModel):
        def room(self):
            return Room(enough=False, pages=9, free_pages=2)

    engine = InProcessEngine(lambda: Full(3), EngineConfig(model="echo"))
    async with start_server(engine=engine) as server, call(server) as caller:
        await caller.send("session.update", session={})
        error = (await caller.until("error"))["error"]
        assert (error["code"], error["type"]) == ("resource_exhausted", "server_error")
        assert "can't keep up" in error["message"]
        assert await caller.close_code() == 1013
        told = await samples(server)
        assert told["duplex_sessions_refused_total", "overloaded"] == 1
        assert (told["duplex_device_pages", "cpu"], told["duplex_device_pages_free", "cpu"]) == (
            9,
            2,
        )


async def test_refused_sessions_are_counted_by_reason(start_server, call):
    async with (
        start_server(max_sessions=1) as server,
        call(server) as first,
        call(server) as second,
    ):
        await first.configure()
        await second.send("session.update", session={})
        await second.close_code()
        assert (await samples(server))["duplex_sessions_refused_total", "resource_exhausted"] == 1


async def test_failures_of_our_own_are_500_without_details(start_server, monkeypatch, caplog):
    async with start_server() as server:
        monkeypatch.setattr(type(server.runtime), "not_ready", property(lambda _: 1 / 0))
        status, body = await get(server, "/ready")
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "division" not in str(body)
    assert "ZeroDivisionError" in caplog.text
