"""Opus packets, concealment and the whole way from packets to frames; time is only a number."""

import gc
import math
import os
import sys

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rtc_client import speech

from media.formats import BadAudio
from media.opus import (
    PACKET_SAMPLES,
    PACKET_TICKS,
    OpusDecoder,
    OpusEncoder,
    packet_ticks,
)
from media.rtc.audio_input import FRAME_SIZE, MAX_BACKLOG_FRAMES, AudioInput
from media.rtc.concealment import FADE_SAMPLES, Concealer

VOICE = speech(4.0)


def packets(pcm: np.ndarray, *, fec: bool = False) -> list[bytes]:
    encoder = OpusEncoder(fec=fec)
    return [
        bytes(encoder.encode(pcm[k * PACKET_SAMPLES : (k + 1) * PACKET_SAMPLES], k * PACKET_TICKS))
        for k in range(len(pcm) // PACKET_SAMPLES)
    ]


def likeness(heard: np.ndarray, said: np.ndarray) -> tuple[int, float]:
    """Lag in samples and correlation of two signals at their best lag."""
    n = 1 << (len(heard) + len(said)).bit_length()
    products = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(said, n)), n)
    lag = int(np.argmax(products))
    norm = math.sqrt(float((heard**2).sum() * (said**2).sum()))
    return lag - n if lag > n // 2 else lag, float(products[lag]) / norm


def play(network: dict[int, float], voice: list[bytes]) -> tuple[AudioInput, list[np.ndarray]]:
    """Packets k that arrive at their times, the others never; gives the frames."""
    audio, frames = AudioInput(), []
    for now, k in sorted((time, k) for k, time in network.items()):
        while (deadline := audio.next_deadline) is not None and deadline < now:
            frames += audio.due(deadline)
        frames += audio.push(1, k & 0xFFFF, k * PACKET_TICKS & 0xFFFFFFFF, voice[k], now)
    return audio, frames


@pytest.mark.parametrize(
    ("head", "ticks"),
    [
        (b"\x08", 960),  # SILK narrow band, 20 ms
        (b"\x18", 2880),  # SILK, 60 ms
        (b"\x60", 480),  # hybrid, 10 ms
        (b"\xf8", 960),  # CELT full band, 20 ms
        (b"\xe0", 120),  # CELT, 2.5 ms
        (b"\xf9", 1920),  # two frames of one size
        (b"\xfa\x01", 1920),  # two frames of two sizes
        (b"\xfb\x03", 2880),  # three frames
    ],
)
def test_a_packet_says_how_long_it_is(head: bytes, ticks: int):
    assert packet_ticks(head) == ticks


@pytest.mark.parametrize("payload", [b"", b"\xfb", b"\xfb\x00", b"\x1b\x03"])
def test_what_is_no_opus_packet(payload: bytes):
    with pytest.raises(BadAudio):
        packet_ticks(payload)


@pytest.mark.parametrize("fec", [False, True])
def test_a_voice_survives_the_codec(fec: bool):
    decoder = OpusDecoder()
    coded = packets(VOICE, fec=fec)
    assert {packet_ticks(payload) for payload in coded} == {PACKET_TICKS}
    heard = np.concatenate([decoder.decode(payload) for payload in coded])[::2]
    lag, correlation = likeness(heard, VOICE)
    assert correlation > 0.85
    assert 0 <= lag < 240


def test_packets_carry_their_predecessor_only_when_asked_for():
    """Forward error correction lives in Opus's speech mode (configurations below 16)."""
    assert all(payload[0] >> 3 < 16 for payload in packets(VOICE, fec=True))
    assert all(payload[0] >> 3 >= 16 for payload in packets(VOICE, fec=False))


def test_the_encoder_takes_pieces_of_one_size():
    with pytest.raises(ValueError, match="479 samples"):
        OpusEncoder(fec=False).encode(np.zeros(479, np.float32), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_encoders_and_decoders_start_no_threads():
    gc.collect()  # what is left of other tests must not end meanwhile
    threads, processors = len(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    kept = []
    for fec in (False, True) * 4:
        kept.append((encoder := OpusEncoder(fec=fec), decoder := OpusDecoder()))
        for _ in range(3):
            decoder.decode(bytes(encoder.encode(np.zeros(480, np.float32), 0)))
    assert len(os.listdir("/proc/self/task")) == threads
    assert os.sched_getaffinity(0) == processors


def test_an_encoded_packet_is_stamped_for_the_rtp_clock():
    packet = OpusEncoder(fec=False).encode(np.zeros(PACKET_SAMPLES, np.float32), 12345)
    assert packet.pts == 12345
    assert isinstance(packet, av.Packet)
    assert (packet.time_base.numerator, packet.time_base.denominator) == (1, 48000)


def test_a_gap_goes_on_in_pitch_and_fades_to_nothing():
    concealer = Concealer()
    t = np.arange(48000) / 48000
    tone = (0.5 * np.sin(2 * np.pi * 150 * t)).astype(np.float32)
    concealer.receive(tone[:4800])
    gap = np.concatenate([concealer.conceal(960) for _ in range(4)])
    goes_on = np.corrcoef(gap[:960], tone[4800:5760])[0, 1]
    assert goes_on > 0.98
    assert np.abs(gap[:480]).max() > 0.4
    assert np.abs(gap[1920:2400]).max() < 0.2
    assert not gap[FADE_SAMPLES:].any()
    edge = abs(float(gap[0]) - float(tone[4799]))
    assert edge < 0.05  # no click


def test_what_comes_after_a_gap_is_faded_in_and_then_untouched():
    concealer = Concealer()
    concealer.receive(np.full(4800, 0.5, np.float32))
    concealer.conceal(960 * 10)
    after = np.full(960, 0.8, np.float32)
    heard = concealer.receive(after)
    assert heard[0] < 0.01
    assert np.all(np.diff(heard[:240]) > 0)
    assert np.array_equal(heard[240:], after[240:])
    assert np.array_equal(concealer.receive(after), after)


def test_silence_before_anything_is_silent():
    assert not Concealer().conceal(960).any()


def test_a_frame_is_given_by_the_packet_that_completes_it():
    audio, voice = AudioInput(), packets(VOICE)
    for k in range(40):
        frames = audio.push(1, k, k * PACKET_TICKS, voice[k], k * 0.02)
        assert len(frames) == (k % 4 == 3)
        assert all(len(frame) == FRAME_SIZE and frame.dtype == np.float32 for frame in frames)


def test_lost_packets_are_concealed_and_counted_and_shift_nothing():
    voice = packets(VOICE)
    network = {k: k * 0.02 for k in range(200) if k not in {20, 21, 50, 91}}
    audio, frames = play(network, voice)
    heard = np.concatenate(frames)
    stats = audio.stats()
    assert len(frames) == 50
    assert stats.lost_samples == 4 * PACKET_SAMPLES
    assert (stats.packets, stats.late_packets, stats.silence_samples) == (196, 0, 0)
    lag, correlation = likeness(heard, VOICE)
    assert correlation > 0.8
    for half in (slice(0, 48000), slice(48000, 96000)):
        assert abs(likeness(heard[half], VOICE[half])[0] - lag) < 24


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.05, 0.10]))
def test_loss_jitter_and_reordering_keep_the_voice_in_place(seed: int, loss: float):
    rng = np.random.default_rng(seed)
    voice = packets(VOICE)
    network = {
        k: k * 0.02 + float(rng.uniform(0, 0.05)) for k in range(200) if rng.random() >= loss
    }
    audio, frames = play(network, voice)
    stats = audio.stats()
    heard = np.concatenate(frames)[-72000:]
    said = VOICE[: len(frames) * FRAME_SIZE][-72000:]
    lag, correlation = likeness(heard, said)
    assert 47 <= len(frames) <= 50
    assert correlation > 0.5
    assert -3 * PACKET_SAMPLES < lag < 240  # in place, counted from the packet that came first
    gone = 200 - len(network) + stats.late_packets
    assert stats.lost_samples + stats.silence_samples <= (gone + 4) * PACKET_SAMPLES
    assert stats.late_packets <= 20


def test_bytes_that_are_no_opus_are_concealed_and_counted():
    audio, voice = AudioInput(), packets(VOICE)
    frames = []
    for k in range(40):
        payload = {10: b"", 20: b"\xff\xff\xff"}.get(k, voice[k])
        frames += audio.push(1, k, k * PACKET_TICKS, payload, k * 0.02)
        frames += audio.due(k * 0.02 + 0.0001)
    stats = audio.stats()
    assert stats.bad_packets == 2
    assert stats.lost_samples >= PACKET_SAMPLES
    assert len(frames) >= 9


def test_a_sender_faster_than_time_is_cut_off_not_queued():
    audio, voice = AudioInput(), packets(VOICE)
    frames = []
    for k in range(200):  # four seconds of audio in 20 ms
        frames += audio.push(1, k, k * PACKET_TICKS, voice[k], k * 0.0001)
    assert len(frames) <= MAX_BACKLOG_FRAMES + 1
    assert audio.stats().dropped_samples == (50 - len(frames)) * FRAME_SIZE


def test_mute_from_the_start_is_silence_in_real_time():
    audio = AudioInput()
    audio.start(0.0)
    frames, now = [], 0.0
    while (now := audio.next_deadline) < 2.0:
        frames += audio.due(now)
    assert len(frames) == pytest.approx((2.0 - 0.32) / 0.08, abs=1)
    assert not np.concatenate(frames).any()
    assert audio.stats().silence_samples == len(frames) * FRAME_SIZE
