import os

import pytest

from clients.bench import bench
from clients.cpu import ServerCpu, server_pid
from clients.errors import ClientError, Refused
from clients.options import SessionOptions
from clients.session import connect
from media.formats import AudioFormat


def options(server) -> SessionOptions:
    return SessionOptions(
        url=server.address, input_format=AudioFormat.PCM16, output_format=AudioFormat.PCM16
    )


@pytest.mark.parametrize("delay", [0, 2])
async def test_counts_of_a_small_load(start_server, delay):
    async with start_server(max_sessions=3, delay_frames=delay) as server:
        result = await bench(options(server), 3, 0.48)
    assert result.sessions == 3
    assert result.frames_in == 18
    assert result.frames_out == 18 - 3 * delay
    assert (result.lost, result.errors) == (0, 0)
    assert result.latency is not None
    assert result.latency.p50_ms > 0
    assert result.server_cpu is not None  # asked of /health
    assert result.server_cpu_per_session == pytest.approx(result.server_cpu / 3, abs=1e-4)
    assert result.client_cpu > 0


async def test_a_server_without_room_refuses_and_gets_its_slots_back(start_server):
    async with start_server(max_sessions=2) as server:
        with pytest.raises(Refused, match="resource_exhausted"):
            await bench(options(server), 3, 0.1)
        async with connect(server.address), connect(server.address):
            pass


async def test_the_process_is_found_by_its_health(start_server):
    async with start_server() as server:
        stopped = options(server)
        assert await server_pid(stopped) == os.getpid()
    assert await server_pid(stopped) is None
    assert await server_pid(SessionOptions(url="wss://example.org")) is None


def test_cpu_time_grows_with_work():
    cpu = ServerCpu(os.getpid())
    before = cpu.seconds()
    while cpu.seconds() == before:
        sum(range(10000))
    with pytest.raises(ClientError, match="no process"):
        ServerCpu(2**22 + 1)
