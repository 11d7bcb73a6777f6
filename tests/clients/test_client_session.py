import asyncio
import signal

import numpy as np
import pytest

from clients.errors import ClientError, ConnectionLost, Refused, Unauthorized, Unreachable
from clients.events import (
    AudioFrame,
    Other,
    ResponseCreated,
    ResponseDone,
    ServerError,
    SessionClosed,
)
from clients.options import SessionOptions
from clients.session import connect, open_session
from media.formats import AudioFormat

SIZE = 1920


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32)


async def hear(session) -> list:
    return [event async for event in session]


def audio(events) -> list[AudioFrame]:
    return [event for event in events if isinstance(event, AudioFrame)]


@pytest.mark.parametrize("dialect", ["ga", "beta"])
async def test_an_echo_comes_back_bit_for_bit(start_server, dialect):
    pcm = noise(5 * SIZE + 700)
    async with (
        start_server() as server,
        connect(server.address, dialect=dialect, persona="x", voice="y", seed=3) as session,
    ):
        assert (session.frame_s, session.frame_size, session.input_rate) == (0.08, SIZE, 24000)
        assert session.capabilities["max_sessions"] == 2
        for chunk in np.split(pcm, [10, 2000, 2001, 9000]):
            await session.send_audio(chunk)
        await session.end_input()
        events = await hear(session)
        frames = audio(events)
        assert [frame.index for frame in frames] == list(range(6))
        assert all(len(frame.pcm) == SIZE and frame.sample_rate == 24000 for frame in frames)
        heard = np.concatenate([frame.pcm for frame in frames])
        assert heard[: len(pcm)].tobytes() == pcm.tobytes()
        assert not heard[len(pcm) :].any()
        created = [e.response_id for e in events if isinstance(e, ResponseCreated)]
        done = [e for e in events if isinstance(e, ResponseDone)]
        assert created == [frames[0].response_id]
        assert done == [ResponseDone(created[0], "completed")]
        assert events[-1] == SessionClosed(session.id, "client_close")
        assert await hear(session) == []


async def test_a_recording_longer_than_a_message_may_be(start_server):
    pcm = noise(600 * SIZE)
    async with (
        start_server(max_message_bytes=6 << 20) as server,
        connect(server.address) as session,
    ):

        async def speak():
            await session.send_audio(pcm)
            await session.end_input()

        speaking = asyncio.create_task(speak())
        frames = audio(await hear(session))
        await speaking
        assert np.array_equal(np.concatenate([frame.pcm for frame in frames]), pcm)


@pytest.mark.parametrize(
    ("sent", "heard", "tolerance"),
    [
        (AudioFormat.PCM16, AudioFormat.PCM16, 1 / 65536),
        (AudioFormat.PCM_F32LE, AudioFormat.PCM16, 1 / 65536),
        (AudioFormat.PCM16, AudioFormat.PCM_F32LE, 1 / 65536),
    ],
)
async def test_formats(start_server, sent, heard, tolerance):
    pcm = noise(3 * SIZE)
    async with (
        start_server() as server,
        connect(server.address, input_format=sent, output_format=heard) as session,
    ):
        await session.send_audio(pcm)
        await session.end_input()
        got = np.concatenate([frame.pcm for frame in audio(await hear(session))])
        assert np.max(np.abs(got - pcm)) <= tolerance


async def test_telephone_audio_is_8_khz_both_ways(start_server):
    tone = (0.4 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)).astype(np.float32)
    async with (
        start_server() as server,
        connect(
            server.address,
            input_format=AudioFormat.G711_ULAW,
            output_format=AudioFormat.G711_ALAW,
        ) as session,
    ):
        assert (session.input_rate, session.frame_size) == (8000, 640)
        await session.send_audio(tone)
        await session.end_input()
        frames = audio(await hear(session))
        assert {frame.sample_rate for frame in frames} == {8000}
        got = np.concatenate([frame.pcm for frame in frames])[:8000]
        spectrum = np.abs(np.fft.rfft(got))
        assert np.argmax(spectrum) == pytest.approx(440 * len(got) / 8000, abs=2)


async def test_an_error_of_the_server_is_an_event_and_the_session_goes_on(start_server):
    async with start_server() as server, connect(server.address) as session:
        await session.send("no.such.event", event_id="mine")
        pcm = noise(SIZE)
        await session.send_audio(pcm)
        await session.end_input()
        events = await hear(session)
        (error,) = [event for event in events if isinstance(event, ServerError)]
        assert (error.code, error.event_id) == ("unknown_event", "mine")
        assert audio(events)[0].pcm.tobytes() == pcm.tobytes()


async def test_a_response_can_be_cancelled_and_the_stream_goes_on(start_server):
    async with start_server() as server, connect(server.address) as session:
        await session.send_audio(noise(SIZE))
        while not isinstance(await anext(session), AudioFrame):
            pass
        await session.cancel_response()
        await session.send_audio(noise(2 * SIZE))
        await session.end_input()
        events = await hear(session)
        decisions = [e for e in events if isinstance(e, Other) and e.type == "overlap.decision"]
        assert [e.data["action"] for e in decisions] == ["barge_in"]
        assert [frame.index for frame in audio(events)] == [1, 2]


async def test_a_full_server_refuses_and_a_slot_that_is_free_again_is_given(start_server):
    async with start_server(max_sessions=1) as server:
        async with connect(server.address):
            with pytest.raises(Refused, match="resource_exhausted") as caught:
                await open_session(SessionOptions(url=server.address))
            assert caught.value.code == "resource_exhausted"
        async with connect(server.address) as session:
            await session.send_audio(noise(SIZE))


async def test_a_setting_that_is_refused_is_named(start_server):
    async with start_server() as server:
        options = SessionOptions(url=server.address, input_rate=4000)
        with pytest.raises(Refused, match="sample_rate_hz") as caught:
            await open_session(options)
        assert caught.value.param == "session.sample_rate_hz"


async def test_the_api_key_counts(start_server):
    async with start_server(api_keys=["a-good-key"]) as server:
        for key in (None, "a-bad-key"):
            with pytest.raises(Unauthorized, match="API key"):
                await open_session(SessionOptions(url=server.address, api_key=key))
        async with connect(server.address, api_key="a-good-key") as session:
            assert session.id


async def test_nobody_there(unused_tcp_port):
    with pytest.raises(Unreachable, match="no server at"):
        await open_session(SessionOptions(url=f"ws://127.0.0.1:{unused_tcp_port}"))


async def test_a_server_that_says_nothing_is_unreachable():
    gone = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="no server at"):
            await open_session(SessionOptions(url=f"ws://127.0.0.1:{port}", open_timeout_s=0.1))
        await gone.wait()


async def test_an_address_without_a_session_is_refused(start_server):
    async with start_server() as server:
        with pytest.raises(Refused) as caught:
            await open_session(SessionOptions(url=server.address + "/nowhere"))
        assert caught.value.code not in ("", None)


async def test_wav_is_no_format_of_a_session():
    with pytest.raises(ClientError, match="not wav"):
        await open_session(SessionOptions(output_format=AudioFormat.WAV))


async def test_close_is_idempotent_and_reads_what_is_left(start_server):
    async with start_server() as server, connect(server.address) as session:
        await session.send_audio(noise(20 * SIZE))
        assert await session.close() == SessionClosed(session.id, "client_close")
        assert await session.close() == SessionClosed(session.id, "client_close")
        assert await hear(session) == []


async def test_one_may_close_while_another_listens(start_server):
    async with start_server() as server, connect(server.address) as session:
        listening = asyncio.create_task(hear(session))
        await session.send_audio(noise(3 * SIZE))
        assert await session.close() == SessionClosed(session.id, "client_close")
        await listening


async def test_a_server_that_dies_is_a_lost_connection(start_process):
    with start_process("echo", "--max-sessions", "1") as server:
        async with connect(server.address) as session:
            await session.send_audio(noise(SIZE))
            while not isinstance(await anext(session), AudioFrame):
                pass
            server.stop(signal.SIGKILL)
            with pytest.raises(ConnectionLost) as caught:
                await hear(session)
            assert caught.value.code == 1006
            with pytest.raises(ConnectionLost):
                await session.send_audio(noise(SIZE))
            assert await session.close() is None


async def test_a_server_that_stops_says_so(start_server):
    async with start_server(drain_s=0) as server:
        session = await open_session(SessionOptions(url=server.address))
    assert await session.close() == SessionClosed(session.id, "server_shutdown")


async def test_the_end_of_the_input_is_said_once(start_peer):
    heard = []

    async def script(socket) -> None:
        async for message in socket:
            heard.append(message.json()["type"])
            if heard[-1] == "input_audio_buffer.append":
                await socket.send_json({"type": "session.closed", "reason": "x"})
                return

    async with start_peer(script) as url, connect(url) as session:
        await session.end_input()
        await session.end_input()
        await session.send_audio(noise(10))
        assert (await session.close()).reason == "x"
    assert heard == ["session.close", "input_audio_buffer.append"]


async def test_what_is_no_event_ends_the_session(start_peer):
    async def script(socket) -> None:
        await socket.send_str("{nonsense")
        await socket.receive()

    async with start_peer(script) as url:
        session = await open_session(SessionOptions(url=url))
        with pytest.raises(ClientError, match="no event"):
            await anext(session)
        assert await session.close() is None
