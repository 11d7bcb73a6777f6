import io
import re
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.files import AudioFileError, WavWriter, read_audio, write_wav
from media.wav import Subtype, wav_header


def tone(rate: int, seconds: float = 1.0, hz: float = 440) -> np.ndarray:
    t = np.arange(round(rate * seconds)) / rate
    return (0.4 * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def encode_file(path: Path, codec: str, rate: int, channels: list[np.ndarray], fmt: str) -> None:
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        stream.format = fmt
        frame = av.AudioFrame.from_ndarray(np.stack(channels), format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=fmt, layout=layout, rate=rate, frame_size=1024)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


@settings(max_examples=20)
@given(st.integers(0, 3000), st.sampled_from([8000, 24000, 48000]))
def test_a_float_wav_comes_back_bit_for_bit(tmp_path_factory, n, rate):
    path = tmp_path_factory.mktemp("wav") / "a.wav"
    pcm = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    write_wav(path, pcm, rate, "float")
    assert read_audio(path, rate).tobytes() == pcm.tobytes()


def test_a_pcm16_wav_comes_back_exactly_and_others_read_it(tmp_path):
    path = tmp_path / "a.wav"
    values = np.arange(65536, dtype=np.uint16).view(np.int16)
    write_wav(path, values.astype(np.float32) / 32768, 24000)
    assert np.array_equal(read_audio(path, 24000) * 32768, values)
    with wave.open(str(path)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (
            24000,
            1,
            2,
        )
        assert reader.readframes(65536) == values.tobytes()


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
@pytest.mark.parametrize(
    ("name", "codec", "fmt", "tolerance"),
    [
        ("a.wav", "pcm_s16le", "s16", 1e-3),
        ("a.wav", "pcm_s24le", "s32", 1e-3),
        ("a.wav", "pcm_u8", "u8", 1e-2),
        ("a.flac", "flac", "s16", 1e-3),
    ],
)
def test_any_rate_becomes_the_wanted_one(tmp_path, name, codec, fmt, tolerance, rate):
    path = tmp_path / name
    encode_file(path, codec, rate, [tone(rate)], fmt)
    pcm = read_audio(path, 24000)
    assert pcm.dtype == np.float32
    assert len(pcm) == 24000
    assert np.max(np.abs(pcm - tone(24000))[500:-500]) < tolerance


@pytest.mark.parametrize(
    ("name", "codec", "fmt"), [("a.ogg", "libopus", "flt"), ("a.mp3", "libmp3lame", "fltp")]
)
def test_lossy_files_are_read(tmp_path, name, codec, fmt):
    path = tmp_path / name
    encode_file(path, codec, 48000, [tone(48000, 2)] * 2, fmt)
    pcm = read_audio(path, 24000)
    assert abs(len(pcm) - 48000) < 4000
    spectrum = np.abs(np.fft.rfft(pcm[4000:28000]))
    assert abs(np.argmax(spectrum) - 440) <= 1
    assert np.sqrt(np.mean(pcm[4000:28000] ** 2)) == pytest.approx(0.4 / np.sqrt(2), rel=0.05)


def test_channels_are_averaged(tmp_path):
    path = tmp_path / "a.wav"
    left, right = tone(24000, hz=300), tone(24000, hz=700)
    encode_file(path, "pcm_f32le", 24000, [left, right], "flt")
    assert np.allclose(read_audio(path, 24000), (left + right) / 2, atol=1e-6)
    encode_file(path, "pcm_f32le", 24000, [left, right, right, left, left, right], "flt")
    assert np.allclose(read_audio(path, 24000), (left + right) / 2, atol=1e-6)


def test_no_such_file_is_named(tmp_path):
    with pytest.raises(AudioFileError, match=re.escape(f"{tmp_path / 'nothing.wav'}: No such")):
        read_audio(tmp_path / "nothing.wav", 24000)


@pytest.mark.parametrize("data", [b"", b"hello world" * 100, b"RIFF\x00\x00\x00\x00WAVE"])
def test_what_is_no_audio_is_an_error(tmp_path, data):
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    with pytest.raises(AudioFileError, match=r"a\.wav"):
        read_audio(path, 24000)


def test_a_video_without_audio_is_an_error(tmp_path):
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        container.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(AudioFileError, match="no audio"):
        read_audio(path, 24000)


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path):
    with pytest.raises(AudioFileError, match="No such"):
        write_wav(tmp_path / "nowhere" / "a.wav", tone(24000), 24000)


@pytest.mark.parametrize("subtype", list(Subtype))
def test_a_wav_in_the_writing_is_a_whole_file(tmp_path, subtype):
    path = tmp_path / "a.wav"
    pcm = np.round(tone(24000) * 32768).astype(np.float32) / 32768
    with WavWriter(path, 24000, subtype) as writer:
        for k in range(12):
            writer.write(pcm[k * 1920 : (k + 1) * 1920])
            assert np.array_equal(read_audio(path, 24000), pcm[: (k + 1) * 1920])
        assert writer.samples == 12 * 1920
    writer.close()


def test_a_header_has_one_length_and_no_overflow():
    for subtype in Subtype:
        sizes = {len(wav_header(24000, subtype, n)) for n in (0, 1, 10**6, 10**12)}
        assert len(sizes) == 1
    data = wav_header(24000, Subtype.PCM16, 3) + bytes(6)
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getnframes() == 3


def test_the_recording_is_read(recording):
    with wave.open(str(recording)) as reader:
        rate, frames, channels = (
            reader.getframerate(),
            reader.getnframes(),
            reader.getnchannels(),
        )
    pcm = read_audio(recording, 24000)
    assert channels == 1
    assert len(pcm) == -(-frames * 24000 // rate)
    assert np.sqrt(np.mean(pcm**2)) > 1e-2
