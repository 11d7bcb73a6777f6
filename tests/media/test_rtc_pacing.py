"""Pacing of what is sent: the clock that decides, and the track that sleeps by it."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rtc_client import speech

from media.clock import VirtualClock, settle
from media.output_clock import OutputClock
from media.rtc.alarm import Alarm
from media.rtc.audio_output import GRACE_S, MAX_BACKLOG_S, RECOVER_AFTER_S, AudioOutput

SIZE, RATE, PACKET_S = 480, 24000, 0.02


def numbered(k: int) -> np.ndarray:
    return np.full(SIZE, k + 1, np.float32)


def numbers(frames) -> list[int]:
    """The k of `numbered`; -1 for silence."""
    return [int(frame[0]) - 1 for frame in frames]


def live() -> OutputClock:
    return OutputClock(SIZE, RATE, grace_s=GRACE_S, recover_after_s=RECOVER_AFTER_S)


def drive(clock: OutputClock, puts: list[tuple[float, int]], until: float):
    """Puts packets k at their times and asks at every deadline; gives (time, k)."""
    sent = []
    for now, k in puts:
        sent += drain(clock, now)
        clock.put(numbered(k), now)
        sent += [(now, number) for number in numbers(clock.due(now))]
    return sent + drain(clock, until)


def drain(clock: OutputClock, until: float):
    sent = []
    while (deadline := clock.next_deadline) is not None and deadline < until:
        given_now = clock.due(deadline)
        assert given_now  # a deadline that gives nothing would be asked for for ever
        sent += [(deadline, number) for number in numbers(given_now)]
    return sent


def test_a_packet_within_the_grace_is_sent_at_once_and_nothing_in_its_place():
    clock = live()
    sent = drive(clock, [(0.0, 0), (0.03, 1), (0.04, 2)], 0.05)
    assert sent == [(0.0, 0), (0.03, 1), (0.04, 2)]
    assert clock.concealed == 0


def test_after_the_grace_silence_is_sent_and_the_packet_follows():
    clock = live()
    sent = drive(clock, [(0.0, 0), (0.036, 1)], 0.05)
    assert sent == [(0.0, 0), (pytest.approx(0.035), -1), (0.04, 1)]


def test_delay_that_silence_added_is_taken_back_within_a_second():
    clock = live()
    stall = 0.2
    puts = [(k // 4 * 0.08 + (stall if k >= 40 else 0), k) for k in range(44)]
    puts += [(max(k // 4 * 0.08, 0.8 + stall), k) for k in range(44, 200)]
    sent = drive(clock, puts, 5.0)
    behind = [time - k * PACKET_S for time, k in sent if k >= 0 and time > 0.8 + stall + 1.0]
    assert max(behind) < PACKET_S
    assert clock.recovered == 10
    assert clock.concealed - clock.recovered <= 1 + (5.0 - 4.0) / PACKET_S


def test_delay_is_taken_back_once_and_by_the_quietest():
    """Frames of four packets that all come 30 ms early: one packet too much waits."""
    clock = live()
    clock.put(numbered(1000), 0.0)
    sent = numbers(clock.due(0.0))
    loud = 1000
    for frame in range(30):
        now = max(0.0, (4 * frame + 1) * PACKET_S - 0.03)
        while (deadline := clock.next_deadline) < now:
            sent += numbers(clock.due(deadline))
        for piece in range(4):
            loud += piece != 2
            clock.put(numbered(piece if piece == 2 else loud), now)
    assert clock.recovered == 1
    assert clock.dropped == 0
    assert len(sent) > 100
    spoken = [k for k in sent if k >= 1000]
    assert spoken == list(range(1000, spoken[-1] + 1))  # nothing of what is loud is missing


def test_delay_is_not_taken_back_where_silence_would_be_sent_for_it():
    """Single packets, each put just after a slot: what waits is the next slot's."""
    clock = live()
    clock.start(0.0)
    for k in range(100):
        clock.due(k * PACKET_S + (GRACE_S if k == 0 else 0))
        clock.put(numbered(k), k * PACKET_S + (GRACE_S if k == 0 else 0))
    assert (clock.concealed, clock.recovered) == (1, 0)


def test_a_source_that_runs_ahead_keeps_what_it_put_unless_told_otherwise():
    clock = OutputClock(SIZE, RATE)
    for k in range(200):
        clock.put(numbered(k), k * PACKET_S / 1.1)
        clock.due(k * PACKET_S / 1.1)
    assert clock.recovered == 0


jitters = st.lists(st.floats(0, 0.05), min_size=40, max_size=120)


@settings(max_examples=150)
@given(jitters, st.floats(0, 0.08))
def test_under_jitter_packets_stay_in_order_and_delay_stays_bounded(jitter, phase):
    clock = live()
    clock.start(0.0)
    puts, now = [], 0.0
    for frame, late in enumerate(jitter):
        now = max(now, phase + frame * 0.08 + late)
        puts += [(now, frame * 4 + piece) for piece in range(4)]
    sent = drive(clock, puts, now + 1.0)
    given_packets = [k for _, k in sent if k >= 0]
    assert given_packets == sorted(given_packets)
    assert len(given_packets) + clock.recovered == len(puts)
    assert clock.dropped == 0
    # Behind its time by the jitter, one packet, and what one window could not see.
    assert max(time - phase - k * PACKET_S for time, k in sent if k >= 0) < 0.05 + 3 * PACKET_S
    times = [time for time, _ in sent]
    assert times == sorted(times)


@settings(max_examples=150)
@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=60))
def test_every_slot_is_sent_or_skipped_however_late_it_is_asked_for(pauses):
    clock = live()
    clock.start(0.0)
    now, given_packets = 0.0, 0
    for k, pause in enumerate(pauses):
        now += pause
        clock.put(numbered(k), now)
        given_packets += len(clock.due(now))
    assert clock.frames_out == given_packets
    slots = given_packets + clock.skipped
    assert (slots - 1) * PACKET_S <= now + 1e-9
    assert slots * PACKET_S >= now - GRACE_S - 1e-9 or clock.backlog == 0


async def test_the_track_sends_silence_then_audio_on_absolute_deadlines():
    clock = VirtualClock(100.0)
    track = AudioOutput(clock, fec=False)
    sent: list[tuple[float, int]] = []

    async def sender() -> None:
        while (packet := await track.recv()) is not None:
            sent.append((clock.now(), packet.pts))

    task = asyncio.create_task(sender())
    await clock.advance(0.2)
    silent = len(sent)
    assert [pts for _, pts in sent] == [960 * k for k in range(silent)]
    track.send(speech(0.08))
    await clock.advance(0.2)
    stats = track.stats()
    assert stats.packets == len(sent)
    assert stats.silence_samples == (len(sent) - 4) * SIZE
    assert [pts for _, pts in sent] == [960 * k for k in range(len(sent))]
    for time, pts in sent:
        assert 100.0 + pts / 48000 <= time + 1e-9 <= 100.0 + pts / 48000 + GRACE_S + 1e-6
    track.stop()
    await task


async def test_a_frame_within_the_grace_wakes_the_track():
    clock = VirtualClock()
    track = AudioOutput(clock, fec=False)
    await clock.run(track.recv())  # the slot of 0 s: its silence, after the grace
    waiting = asyncio.create_task(track.recv())
    await clock.advance(0.03 - clock.now())
    assert not waiting.done()
    track.send(speech(0.08))
    await settle()
    assert waiting.done()
    assert (await waiting).pts == 960
    assert track.stats().silence_samples == SIZE


async def test_flush_takes_back_what_is_not_sent():
    clock = VirtualClock()
    track = AudioOutput(clock, fec=True)
    track.send(speech(0.4))
    await clock.run(track.recv())
    assert track.flush() == pytest.approx(0.38)
    assert track.stats().flushed_samples == 19 * SIZE
    assert track.stats().backlog_s == 0


async def test_the_backlog_is_bounded_and_drops_its_oldest():
    track = AudioOutput(VirtualClock(), fec=False)
    for _ in range(20):
        track.send(speech(0.08))
    stats = track.stats()
    assert stats.backlog_s == pytest.approx(MAX_BACKLOG_S)
    assert stats.dropped_samples == 20 * 1920 - round(MAX_BACKLOG_S * RATE)


async def test_a_track_that_was_away_leaves_a_hole_in_the_timestamps():
    clock = VirtualClock()
    track = AudioOutput(clock, fec=False)
    first = await clock.run(track.recv())
    await clock.advance(10.0)
    second = await clock.run(track.recv())
    behind = clock.now() - second.pts / 48000
    assert first.pts == 0
    assert behind <= MAX_BACKLOG_S + GRACE_S + PACKET_S
    assert track.stats().skipped_samples > 9 * RATE


async def test_audio_of_another_size_is_refused_whole():
    track = AudioOutput(VirtualClock(), fec=False)
    with pytest.raises(ValueError, match="500 samples"):
        track.send(np.zeros(500, np.float32))
    assert track.stats().backlog_s == 0


async def test_an_alarm_ends_at_its_deadline_or_when_it_rings():
    clock = VirtualClock()
    alarm = Alarm(clock)
    waiting = asyncio.create_task(alarm.wait(5.0))
    await clock.advance(4.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert waiting.done()
    waiting = asyncio.create_task(alarm.wait(None))
    await settle()
    assert not waiting.done()
    alarm.ring()
    await waiting
    alarm.ring()
    await alarm.wait(None)  # a ring before the wait is not forgotten
    again = asyncio.create_task(alarm.wait(9.0))
    await settle()
    assert not again.done()
    again.cancel()
