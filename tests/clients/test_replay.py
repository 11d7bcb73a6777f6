import asyncio

import numpy as np
import pytest

from clients.errors import ClientError, Refused
from clients.options import SessionOptions
from clients.replay import replay
from media.files import AudioFileError, read_audio, write_wav
from media.formats import AudioFormat

SIZE = 1920


def speech(samples: int) -> np.ndarray:
    """16-bit values, as recordings have."""
    values = np.random.default_rng(samples).integers(-20000, 20000, samples)
    return (values / 32768).astype(np.float32)


async def test_an_echo_is_the_input_sample_for_sample(start_server, tmp_path):
    pcm = speech(40 * SIZE + 500)
    write_wav(tmp_path / "in.wav", pcm, 24000)
    seen = []
    async with start_server() as server:
        result = await replay(
            tmp_path / "in.wav",
            tmp_path / "out.wav",
            SessionOptions(url=server.address),
            pacing=False,
            on_progress=lambda *numbers: seen.append(numbers),
        )
    out = read_audio(tmp_path / "out.wav", 24000)
    assert out[: len(pcm)].tobytes() == pcm.tobytes()
    assert len(out) == 41 * SIZE
    assert not out[len(pcm) :].any()
    assert (result.frames_in, result.frames_out) == (41, 41)
    assert (result.deficit, result.lost) == (0, 0)
    assert len(result.response_ids) == 1
    assert result.errors == ()
    assert result.closed == "client_close"
    assert (result.sample_rate, result.frame_ms) == (24000, 80.0)
    assert result.latency is not None
    assert 0 < result.latency.p50_ms <= result.latency.p99_ms <= result.latency.max_ms
    assert result.first_audio_ms is not None
    assert seen[-1] == (41, 41, 41)


async def test_paced_in_real_time(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(5 * SIZE), 24000)
    async with start_server() as server:
        result = await replay(tmp_path / "in.wav", None, SessionOptions(url=server.address))
    assert result.duration_s >= 4 * 0.08
    assert (result.frames_in, result.frames_out, result.output) == (5, 5, None)


async def test_other_rates_and_a_tail(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(44100), 44100)
    async with start_server() as server:
        result = await replay(
            tmp_path / "in.wav",
            tmp_path / "out.wav",
            SessionOptions(url=server.address),
            pacing=False,
            tail_s=0.5,
        )
    pcm = read_audio(tmp_path / "in.wav", 24000)
    out = read_audio(tmp_path / "out.wav", 24000)
    assert out[:24000].tobytes() == pcm.tobytes()
    assert not out[24000:].any()
    assert result.frames_in == -(-36000 // SIZE)


@pytest.mark.parametrize("delay", [1, 4])
async def test_a_models_start_up_is_the_deficit_and_no_loss(start_server, tmp_path, delay):
    pcm = speech(20 * SIZE)
    write_wav(tmp_path / "in.wav", pcm, 24000)
    async with start_server(delay_frames=delay) as server:
        result = await replay(
            tmp_path / "in.wav",
            tmp_path / "out.wav",
            SessionOptions(url=server.address),
            pacing=False,
        )
    assert (result.frames_in, result.frames_out, result.deficit) == (20, 20 - delay, delay)
    assert result.lost == 0
    out = read_audio(tmp_path / "out.wav", 24000)
    assert out.tobytes() == pcm[: len(out)].tobytes()


async def test_telephone_formats(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(24000), 24000)
    options = {"input_format": AudioFormat.G711_ULAW, "output_format": AudioFormat.G711_ALAW}
    async with start_server() as server:
        result = await replay(
            tmp_path / "in.wav",
            tmp_path / "out.wav",
            SessionOptions(url=server.address, **options),
            pacing=False,
        )
    assert (result.sample_rate, result.frames_in, result.frames_out) == (8000, 13, 13)
    assert abs(len(read_audio(tmp_path / "out.wav", 8000)) - 13 * 640) < 30


async def test_the_recording_comes_back(start_server, recording, tmp_path):
    async with start_server() as server:
        result = await replay(
            recording, tmp_path / "out.wav", SessionOptions(url=server.address), pacing=False
        )
    pcm = read_audio(recording, 24000)
    out = read_audio(tmp_path / "out.wav", 24000)
    assert out[: len(pcm)].tobytes() == pcm.tobytes()
    assert result.frames_out == result.frames_in == -(-len(pcm) // SIZE)


async def test_what_goes_wrong_is_one_clear_error(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(SIZE), 24000)
    async with start_server(max_sessions=1) as server:
        options = SessionOptions(url=server.address)
        with pytest.raises(AudioFileError, match=r"nothing\.wav"):
            await replay(tmp_path / "nothing.wav", None, options)
        with pytest.raises(AudioFileError, match="No such"):
            await replay(tmp_path / "in.wav", tmp_path / "no" / "out.wav", options)
        with pytest.raises(Refused, match="sample_rate_hz"):
            await replay(
                tmp_path / "in.wav", None, SessionOptions(url=server.address, input_rate=7000)
            )
        assert (await replay(tmp_path / "in.wav", None, options)).frames_out == 1


async def test_a_server_that_stops_ends_the_replay_with_its_reason(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(50 * SIZE), 24000)
    async with start_server(drain_s=0) as server:
        heard = asyncio.Event()
        running = asyncio.create_task(
            replay(
                tmp_path / "in.wav",
                None,
                SessionOptions(url=server.address),
                on_progress=lambda sent, received, frames: received and heard.set(),
            )
        )
        await heard.wait()
    result = await running
    assert result.closed == "server_shutdown"
    assert 0 < result.frames_out <= result.frames_in < 50


async def test_a_server_that_goes_silent_is_an_error(start_peer, tmp_path):
    async def mute(socket) -> None:
        async for _ in socket:
            pass

    write_wav(tmp_path / "in.wav", speech(SIZE), 24000)
    async with start_peer(mute) as url:
        with pytest.raises(ClientError, match=r"nothing came from the server for 0\.2 s"):
            await replay(tmp_path / "in.wav", None, SessionOptions(url=url), stall_s=0.2)


async def test_a_long_replay_is_no_stall(start_server, tmp_path):
    write_wav(tmp_path / "in.wav", speech(16 * SIZE), 24000)
    async with start_server() as server:
        result = await replay(
            tmp_path / "in.wav", None, SessionOptions(url=server.address), stall_s=1.0
        )
    assert result.duration_s > 1.0
    assert result.frames_out == 16


async def test_silence_stands_for_frames_that_were_lost(start_peer, tmp_path):
    pcm = speech(4 * SIZE)

    async def lossy(socket) -> None:
        for k in range(4):
            message = await socket.receive_json()
            if k not in (0, 2):
                await socket.send_json(
                    {
                        "type": "response.output_audio.delta",
                        "response_id": "r",
                        "delta": message["audio"],
                        "metadata": {"frame_index": k},
                    }
                )
        assert (await socket.receive_json())["type"] == "session.close"
        await socket.send_json({"type": "session.closed", "session_id": "s", "reason": "x"})

    write_wav(tmp_path / "in.wav", pcm, 24000)
    async with start_peer(lossy) as url:
        result = await replay(
            tmp_path / "in.wav", tmp_path / "out.wav", SessionOptions(url=url), pacing=False
        )
    assert (result.frames_in, result.frames_out, result.deficit, result.lost) == (4, 2, 2, 2)
    out = read_audio(tmp_path / "out.wav", 24000).reshape(4, SIZE)
    assert not out[[0, 2]].any()
    assert out[[1, 3]].tobytes() == pcm.reshape(4, SIZE)[[1, 3]].tobytes()
