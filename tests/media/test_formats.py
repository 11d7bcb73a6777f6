import io

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from media.formats import (
    INPUT_FORMATS,
    AudioFormat,
    BadAudio,
    UnsupportedFormat,
    decode,
    encode,
    parse_format,
)

ALL_INT16 = np.arange(65536, dtype=np.uint16).view(np.int16)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("pcm16", AudioFormat.PCM16),
        ("pcm_s16le", AudioFormat.PCM16),
        ("s16le", AudioFormat.PCM16),
        ("audio/pcm", AudioFormat.PCM16),
        ("pcm_f32le", AudioFormat.PCM_F32LE),
        ("g711_ulaw", AudioFormat.G711_ULAW),
        ("audio/pcmu", AudioFormat.G711_ULAW),
        ("g711_alaw", AudioFormat.G711_ALAW),
        ("audio/pcma", AudioFormat.G711_ALAW),
        ("wav", AudioFormat.WAV),
    ],
)
def test_names(name, format):
    assert parse_format(name) is format


@pytest.mark.parametrize("name", ["", "PCM16", "opus", "pcm"])
def test_unknown_name_is_named(name):
    with pytest.raises(UnsupportedFormat, match=repr(name)):
        parse_format(name)


def test_pcm16_round_trip_is_identical_for_every_value():
    data = ALL_INT16.astype("<i2").tobytes()
    pcm = decode(AudioFormat.PCM16, data)
    assert pcm.dtype == np.float32
    assert pcm.min() == -1.0
    assert encode(AudioFormat.PCM16, pcm) == data


def test_pcm16_clips_and_rounds_to_nearest():
    pcm = np.array([2.0, -2.0, 1.0, 0.4 / 32768, 0.6 / 32768, -0.6 / 32768], np.float32)
    values = np.frombuffer(encode(AudioFormat.PCM16, pcm), "<i2")
    assert values.tolist() == [32767, -32768, 32767, 0, 1, -1]


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32, allow_nan=False)))
def test_float_is_bit_exact_or_refused(pcm):
    data = pcm.astype("<f4").tobytes()
    if np.isfinite(pcm).all():
        assert encode(AudioFormat.PCM_F32LE, decode(AudioFormat.PCM_F32LE, data)) == data
    else:
        with pytest.raises(BadAudio, match="infinity"):
            decode(AudioFormat.PCM_F32LE, data)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(value):
    pcm = np.zeros(100, np.float32)
    pcm[-1] = value
    with pytest.raises(BadAudio, match="NaN or infinity"):
        decode(AudioFormat.PCM_F32LE, pcm.tobytes())


@pytest.mark.parametrize(
    ("format", "size"),
    [(AudioFormat.PCM16, 1), (AudioFormat.PCM16, 3), (AudioFormat.PCM_F32LE, 6)],
)
def test_odd_bytes_are_refused(format, size):
    with pytest.raises(BadAudio, match=f"{size} bytes of {format.value}"):
        decode(format, bytes(size))


@pytest.mark.parametrize("format", sorted(INPUT_FORMATS))
def test_nothing_is_fine(format):
    assert len(decode(format, b"")) == 0
    assert encode(format, np.zeros(0, np.float32)) == b""


def test_wav_is_output_only():
    with pytest.raises(UnsupportedFormat, match="output format"):
        decode(AudioFormat.WAV, b"")


def test_wav_is_a_complete_file():
    pcm = ALL_INT16.astype(np.float32) / 32768
    with av.open(io.BytesIO(encode(AudioFormat.WAV, pcm, 16000))) as container:
        assert container.streams.audio[0].rate == 16000
        got = np.concatenate([f.to_ndarray()[0] for f in container.decode(audio=0)])
    assert np.array_equal(got, ALL_INT16)


def _av_encode(codec: str, samples: np.ndarray) -> np.ndarray:
    context = av.CodecContext.create(codec, "w")
    context.sample_rate, context.layout, context.format = 8000, "mono", "s16"
    frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
    frame.sample_rate = 8000
    packets = [*context.encode(frame), *context.encode(None)]
    return np.frombuffer(b"".join(map(bytes, packets)), np.uint8)


def _av_decode(codec: str, data: bytes) -> np.ndarray:
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout = 8000, "mono"
    return np.concatenate([f.to_ndarray()[0] for f in context.decode(av.Packet(data))])


G711 = [(AudioFormat.G711_ULAW, "pcm_mulaw"), (AudioFormat.G711_ALAW, "pcm_alaw")]


@pytest.mark.parametrize(("format", "codec"), G711)
def test_g711_decodes_as_ffmpeg_does(format, codec):
    codes = bytes(range(256))
    ours = decode(format, codes)
    assert np.array_equal(ours * 32768, _av_decode(codec, codes))


@pytest.mark.parametrize(("format", "codec"), G711)
def test_g711_encodes_every_value_into_its_interval(format, codec):
    levels = decode(format, bytes(range(256))).astype(np.float64) * 32768
    segments = levels.reshape(16, 16)  # a code's upper four bits are its sign and segment
    half_step = np.repeat(np.ptp(segments, axis=1) / 15 / 2, 16)
    samples = ALL_INT16.astype(np.float64)
    ours = np.frombuffer(encode(format, (samples / 32768).astype(np.float32)), np.uint8)
    within = np.abs(samples) <= np.max(np.abs(levels))
    error = np.abs(levels[ours] - samples)
    assert np.all(error[within] <= half_step[ours][within])
    assert np.all(np.abs(levels[ours])[~within] == np.max(levels))
    # FFmpeg puts every threshold in the middle of two levels. G.711 puts the one between two
    # segments at the segment's end, so there they differ, by one code.
    theirs = _av_encode(codec, ALL_INT16)
    rank = np.argsort(np.argsort(levels, kind="stable"))
    assert np.max(np.abs(rank[ours] - rank[theirs])) <= 1
    assert np.mean(ours != theirs) < 0.02


@pytest.mark.parametrize(("format", "codec"), G711)
def test_g711_levels_come_back(format, codec):
    levels = decode(format, bytes(range(256)))
    again = decode(format, encode(format, levels))
    assert np.array_equal(levels, again)
