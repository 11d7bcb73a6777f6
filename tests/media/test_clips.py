import io
import wave

import av
import numpy as np
import pytest

from media.clips import read_clip
from media.formats import BadAudio, encode


def wav(pcm, rate=24_000, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(encode("pcm16", pcm))
    return file.getvalue()


def compressed(pcm, container, codec, rate=24_000, sample_format="fltp"):
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        fitting = av.AudioResampler(format=sample_format, layout="mono", rate=rate)
        for piece in fitting.resample(frame):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return file.getvalue()


def tone(seconds, rate=24_000):
    return np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate).astype("f4") / 2


def test_a_wav_at_the_models_rate_comes_back_as_it_was():
    pcm = np.round(tone(0.5) * 32768) / np.float32(32768)
    assert np.array_equal(read_clip(wav(pcm), 24_000, max_s=30), pcm)


@pytest.mark.parametrize(
    ("container", "codec", "sample_format"),
    [("flac", "flac", "s16"), ("mp3", "libmp3lame", "fltp"), ("adts", "aac", "fltp")],
)
def test_other_formats_and_rates(container, codec, sample_format):
    file = compressed(tone(1, 44_100), container, codec, 44_100, sample_format)
    pcm = read_clip(file, 24_000, max_s=30)
    assert abs(len(pcm) - 24_000) < 3_000
    middle = pcm[6_000:18_000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(np.argmax(spectrum) * 24_000 / len(middle) - 440) < 3
    assert 0.3 < np.sqrt(np.mean(middle**2)) < 0.4


def test_channels_are_averaged():
    left, right = tone(0.1), np.zeros(2_400, "f4")
    pcm = read_clip(wav(np.stack((left, right), 1).reshape(-1), channels=2), 24_000, max_s=30)
    assert np.abs(pcm - left / 2).max() < 1e-4


def test_its_length_has_a_limit():
    assert len(read_clip(wav(tone(2)), 24_000, max_s=2)) == 48_000
    with pytest.raises(BadAudio, match="longer than 2 s"):
        read_clip(wav(tone(2.001)), 24_000, max_s=2)


def test_a_long_recording_in_few_bytes_is_not_decoded_whole():
    hour = compressed(np.zeros(24_000 * 600, "f4"), "flac", "flac", sample_format="s16")
    with pytest.raises(BadAudio, match="longer"):
        read_clip(hour, 24_000, max_s=30)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"no audio at all" * 100, wav(tone(0))])
def test_what_is_no_audio_is_refused(data):
    with pytest.raises(BadAudio):
        read_clip(data, 24_000, max_s=30)


def test_samples_that_are_no_numbers_are_refused():
    pcm = tone(0.1)
    pcm[7] = np.nan
    file = compressed(pcm, "wav", "pcm_f32le", sample_format="flt")
    with pytest.raises(BadAudio, match="NaN"):
        read_clip(file, 24_000, max_s=30)


@pytest.mark.parametrize("rate", [1, 999, 1_000_000, 2**31 - 1])
def test_rates_that_nobody_has_are_refused(rate):
    with pytest.raises(BadAudio, match="sample rate"):
        read_clip(wav(tone(0.1), rate), 24_000, max_s=30)


def test_a_playlist_can_not_name_files_of_the_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.wav").write_bytes(wav(tone(1)))
    with pytest.raises(BadAudio):
        read_clip(b"ffconcat version 1.0\nfile secret.wav\n", 24_000, max_s=30)
