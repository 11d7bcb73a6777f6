import io

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.formats import BadAudio, UnsupportedFormat
from media.ogg_opus import MAX_PENDING, PACKET_SAMPLES, RATE, OggOpusDecoder, OggOpusEncoder

FRAME = 1_920
LOOKAHEAD = 156


def speech(seconds, seed=0):
    """Harmonics of a pitch that wanders, with the swell of a voice."""
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 130 + 10 * seed + 40 * np.sin(2 * np.pi * 1.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(number * phase) / number for number in range(1, 20))
    return (0.2 * voice * (1 + np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def best_match(said, heard, most=300):
    """How many samples later it was heard, and how like what was said it is then, up to 1."""
    said = said[: len(heard) - most]
    matches = [np.corrcoef(said, heard[lag : lag + len(said)])[0, 1] for lag in range(most)]
    return int(np.argmax(matches)), max(matches)


def encoded(pcm, chunk=FRAME):
    encoder = OggOpusEncoder(RATE)
    return [encoder.push(pcm[i : i + chunk]) for i in range(0, len(pcm), chunk)] + [encoder.flush()]


def recorded(pcm, *, page_us, packet_ms, layout="mono"):
    """A stream as another encoder and muxer write it, such as a browser's recorder."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg", options={"page_duration": str(page_us)}) as out:
        options = {"frame_duration": str(packet_ms)}
        stream = out.add_stream("libopus", rate=48_000, layout=layout, options=options)
        frame = av.AudioFrame.from_ndarray(pcm[None], format="flt", layout="mono")
        frame.sample_rate = RATE
        for piece in av.AudioResampler(format="flt", layout=layout, rate=48_000).resample(frame):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return file.getvalue()


def test_a_frame_comes_back_in_the_call_that_brings_it():
    decoder = OggOpusDecoder()
    *pages, last = encoded(speech(2))
    assert [len(decoder.push(page)) for page in pages] == [FRAME] * 25
    assert last == b""


def test_what_comes_back_is_what_was_said_a_lookahead_later():
    pcm = speech(2)
    decoder = OggOpusDecoder()
    heard = np.concatenate([decoder.push(pages) for pages in encoded(pcm)])
    lag, likeness = best_match(pcm[RATE:], heard[RATE:])  # once the encoder knows the voice
    assert abs(lag - LOOKAHEAD) <= 6
    assert likeness > 0.7


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=20))
def test_chunks_of_any_size_give_whole_packets_and_the_flush_the_rest(sizes):
    encoder, decoder = OggOpusEncoder(RATE), OggOpusDecoder()
    pushed = decoded = 0
    for size in sizes:
        decoded += len(decoder.push(encoder.push(np.zeros(size, np.float32))))
        pushed += size
        assert decoded == pushed // PACKET_SAMPLES * PACKET_SAMPLES
    decoded += len(decoder.push(encoder.flush()))
    assert decoded == -(-pushed // PACKET_SAMPLES) * PACKET_SAMPLES
    assert encoder.flush() == b""


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_other_rates_are_resampled(rate):
    encoder, decoder = OggOpusEncoder(rate), OggOpusDecoder()
    pages = [encoder.push(np.zeros(rate // 10, np.float32)) for _ in range(10)]
    heard = sum(len(decoder.push(page)) for page in [*pages, encoder.flush()])
    assert heard == RATE


def test_a_rate_that_is_not_spoken_is_refused():
    with pytest.raises(UnsupportedFormat):
        OggOpusEncoder(96_000)


@pytest.mark.parametrize("layout", ["mono", "stereo"])
@pytest.mark.parametrize(("page_us", "packet_ms"), [(40_000, 20), (1_000_000, 20), (1, 2.5)])
@pytest.mark.parametrize("chunk", [1, 300, 1 << 20])
def test_other_peoples_streams_cut_anywhere(page_us, packet_ms, layout, chunk):
    pcm = speech(0.4)
    data = recorded(pcm, page_us=page_us, packet_ms=packet_ms, layout=layout)
    decoder = OggOpusDecoder()
    heard = np.concatenate([decoder.push(data[i : i + chunk]) for i in range(0, len(data), chunk)])
    assert len(pcm) <= len(heard) <= len(pcm) + 2 * RATE * packet_ms / 1000
    assert best_match(pcm, heard)[1] > 0.9


def test_a_backlog_of_ten_seconds_in_one_piece():
    decoder = OggOpusDecoder()
    assert len(decoder.push(b"".join(encoded(speech(10))))) == 10 * RATE


def test_a_stream_that_begins_anew_is_followed():
    decoder = OggOpusDecoder()
    for seed in range(3):
        heard = [len(decoder.push(pages)) for pages in encoded(speech(0.4, seed))]
        assert sum(heard) == int(0.4 * RATE)


@pytest.mark.parametrize("length", [254, 255, 256, 509, 510, 511, 600])
def test_pages_whose_lacing_is_too_short_are_mended(length):
    """As fujielab-moshi-client 0.1.2 writes them: a packet, whatever its length, in one value."""
    head, tags = encoded(speech(0.08))[0].split(b"OggS")[1:3]
    codec = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format = 24_000, "mono", "flt"
    codec.bit_rate = length * 8 * 50
    codec.options = {"vbr": "off"}
    frame = av.AudioFrame.from_ndarray(speech(0.02)[None], format="flt", layout="mono")
    frame.sample_rate = 24_000
    packet = bytes(codec.encode(frame)[0])
    assert len(packet) == length
    page = b"OggS" + bytes(22) + bytes((1, min(255, length))) + packet
    decoder = OggOpusDecoder()
    assert len(decoder.push(b"OggS" + head + b"OggS" + tags)) == 0
    for _ in range(3):
        assert len(decoder.push(page)) == 480


@settings(max_examples=80)
@given(st.data())
def test_garbage_is_bad_audio_or_nothing_worse(data):
    stream = bytearray(b"".join(encoded(speech(0.24))))
    for _ in range(data.draw(st.integers(0, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, 400))
    decoder = OggOpusDecoder()
    try:
        for start in range(0, len(stream), cut):
            pcm = decoder.push(bytes(stream[start : start + cut]))
            assert pcm.dtype == np.float32
            assert np.isfinite(pcm).all()
    except BadAudio:
        pass


@given(st.binary(min_size=8))
def test_what_is_no_ogg_is_refused(data):
    with pytest.raises(BadAudio):
        OggOpusDecoder().push(b"no" + data + bytes(64))


def test_bytes_that_never_become_audio_have_an_end():
    decoder = OggOpusDecoder()
    page = b"OggS\0\0" + bytes(20) + b"\xff" + b"\xff" * 255 + bytes(255 * 255)
    for _ in range(MAX_PENDING // len(page)):
        assert len(decoder.push(page)) == 0
    with pytest.raises(BadAudio, match="no audio in"):
        decoder.push(page)
