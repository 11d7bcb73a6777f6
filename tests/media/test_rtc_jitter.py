"""The order of packets, on a clock that is only a number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.rtc.jitter import (
    MAX_CATCH_UP_FRAMES,
    SILENCE_AFTER_S,
    AudioPacket,
    Gap,
    GapCause,
    JitterBuffer,
)
from media.rtc.transit import MAX_TARGET_S, MIN_TARGET_S, Transit

TICKS, FRAME, RATE = 960, 3840, 48000
FIRST_SEQUENCE, FIRST_TIMESTAMP = 65530, 2**32 - 2000  # both wrap soon


def packet(k: int, *, ticks: int = TICKS, skipped: int = 0, ssrc: int = 7) -> AudioPacket:
    """The k-th packet of a sender; `skipped` ticks of silence were not sent before it."""
    return AudioPacket(
        ssrc,
        (FIRST_SEQUENCE + k) % 2**16,
        (FIRST_TIMESTAMP + k * ticks + skipped) % 2**32,
        ticks,
        k.to_bytes(4, "big"),
    )


def numbers(stream: list[AudioPacket | Gap]) -> list[int | str]:
    """The k of `packet`; of a gap its cause and its packets' worth."""
    return [
        f"{item.cause.value} {item.ticks // TICKS}"
        if isinstance(item, Gap)
        else int.from_bytes(item.payload, "big")
        for item in stream
    ]


def run(buffer: JitterBuffer, arrivals: list[tuple[float, AudioPacket]], until: float):
    """Plays arrivals against the buffer's deadlines; gives (time, item)."""
    given_at = []
    for now, arrived in sorted(arrivals, key=lambda arrival: arrival[0]):
        given_at += run_due(buffer, now)
        given_at += [(now, item) for item in buffer.push(arrived, now)]
    return given_at + run_due(buffer, until)


def run_due(buffer: JitterBuffer, until: float):
    given_at = []
    while (deadline := buffer.next_deadline) is not None and deadline < until:
        given_at += [(deadline, item) for item in buffer.due(deadline)]
    return given_at


def test_what_is_in_order_is_given_at_once():
    buffer = JitterBuffer(FRAME)
    for k in range(40):
        assert numbers(buffer.push(packet(k), 1.0 + k * 0.02)) == [k]
    assert (buffer.received, buffer.late, buffer.lost_ticks) == (40, 0, 0)


def test_swapped_packets_are_put_in_order_without_loss():
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    assert numbers(buffer.push(packet(2), 0.04)) == []
    assert numbers(buffer.push(packet(1), 0.041)) == [1, 2]
    assert buffer.lost_ticks == 0


def test_a_hole_waits_only_for_the_frame_it_lies_in():
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    buffer.push(packet(2), 0.04)
    buffer.push(packet(3), 0.06)
    assert buffer.next_deadline == pytest.approx(0.06 + MIN_TARGET_S)
    assert buffer.due(0.0699) == []
    assert numbers(buffer.due(0.0701)) == ["lost 1", 2, 3]
    assert buffer.lost_ticks == TICKS


def test_a_lost_last_packet_delays_its_frame_by_the_target():
    buffer = JitterBuffer(FRAME)
    for k in range(3):
        buffer.push(packet(k), k * 0.02)
    assert numbers(buffer.due(0.0701)) == ["absent 1"]
    assert numbers(buffer.push(packet(4), 0.08)) == [4]
    assert (buffer.lost_ticks, buffer.absent_ticks) == (TICKS, 0)  # the next packet told


def test_silence_that_was_not_sent_is_no_loss_and_not_waited_for():
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    late = packet(1, skipped=2 * TICKS)
    assert numbers(buffer.push(late, 0.06)) == ["dtx 2", 1]
    assert (buffer.dtx_ticks, buffer.lost_ticks) == (2 * TICKS, 0)


def test_a_long_silence_is_filled_in_real_time():
    buffer = JitterBuffer(FRAME)
    for k in range(4):
        buffer.push(packet(k), k * 0.02)
    filled = run_due(buffer, 0.4)
    assert [time for time, _ in filled] == pytest.approx([0.15, 0.23, 0.31, 0.39])
    assert all(item == Gap(FRAME, GapCause.ABSENT) for _, item in filled)
    assert numbers(buffer.push(packet(4, skipped=4 * FRAME), 0.4)) == [4]
    assert (buffer.dtx_ticks, buffer.absent_ticks, buffer.lost_ticks) == (4 * FRAME, 0, 0)


def test_a_caller_who_never_speaks_is_silence():
    buffer = JitterBuffer(FRAME)
    assert buffer.next_deadline is None
    buffer.start(5.0)
    assert buffer.next_deadline == 5.0 + SILENCE_AFTER_S
    assert numbers(buffer.due(5.0 + SILENCE_AFTER_S + 0.081)) == ["absent 4", "absent 4"]
    assert numbers(buffer.push(packet(0), 6.0)) == [0]


def test_what_comes_when_its_place_is_filled_is_late_and_teaches_patience():
    buffer = JitterBuffer(FRAME)
    for k in range(3):
        buffer.push(packet(k), k * 0.02)
    buffer.due(0.0701)
    assert buffer.push(packet(3), 0.1) == []
    assert buffer.late == 1
    assert buffer.transit.target == pytest.approx(0.045)


def test_duplicates_are_counted_and_change_nothing():
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    assert buffer.push(packet(0), 0.005) == []
    buffer.push(packet(2), 0.04)
    assert buffer.push(packet(2), 0.041) == []
    assert (buffer.duplicates, buffer.late) == (2, 0)
    assert buffer.transit.target == MIN_TARGET_S


def test_a_sender_that_paused_its_clock_is_followed():
    buffer = JitterBuffer(FRAME)
    for k in range(8):
        buffer.push(packet(k), k * 0.02)
    run_due(buffer, 10.0)
    resumed = [(10.0 + k * 0.02, packet(8 + k)) for k in range(30)]
    given_at = run(buffer, resumed, 10.6)
    packets = [n for n in numbers([item for _, item in given_at]) if isinstance(n, int)]
    assert packets == list(range(packets[0], 38))
    assert packets[0] <= 8 + 11  # 200 ms of doubt
    assert buffer.resyncs == 1


def test_a_burst_after_a_pause_of_the_network_adds_no_delay():
    """One second of packets at once: their time has passed, the last ones are punctual."""
    buffer = JitterBuffer(FRAME)
    arrivals = [(k * 0.02, packet(k)) for k in range(50)]
    arrivals += [(2.0 + 1e-4 * k, packet(50 + k)) for k in range(50)]
    arrivals += [(k * 0.02, packet(k)) for k in range(101, 200)]
    given_at = run(buffer, arrivals, 4.0)
    for time, item in given_at:
        if isinstance(item, AudioPacket) and time > 3.0:
            (k,) = numbers([item])
            assert time == pytest.approx(k * 0.02)
    assert buffer.resyncs == 0
    assert buffer.late > 30


@pytest.mark.parametrize("jump", [2**31 - 10**6, 10 * RATE])
def test_another_timeline_begins_at_once(jump: int):
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    assert numbers(buffer.push(packet(1, skipped=jump), 0.02)) == [1]
    assert numbers(buffer.push(packet(2, skipped=jump), 0.04)) == [2]
    assert buffer.resyncs == 1
    assert buffer.dtx_ticks == 0


def test_another_source_begins_at_once():
    buffer = JitterBuffer(FRAME)
    buffer.push(packet(0), 0.0)
    buffer.push(packet(2), 0.04)
    assert numbers(buffer.push(packet(1000, ssrc=8), 0.05)) == ["lost 1", 2, 1000]


def test_packets_longer_than_a_frame_are_whole():
    buffer = JitterBuffer(FRAME)
    long = [packet(k, ticks=5760) for k in range(10)]
    assert numbers(buffer.push(long[0], 0.0)) == [0]
    assert numbers(buffer.push(long[1], 0.12)) == [1]
    given_at = run(buffer, [(k * 0.12, long[k]) for k in range(3, 10)], 1.2)
    packets = [item for _, item in given_at if isinstance(item, AudioPacket)]
    assert numbers(packets) == list(range(3, 10))
    assert sum(item.ticks for _, item in given_at if isinstance(item, Gap)) % 5760 == 0


def test_a_process_that_was_away_does_not_fill_forever():
    buffer = JitterBuffer(FRAME)
    for k in range(4):
        buffer.push(packet(k), k * 0.02)
    filled = buffer.due(100.0)
    assert len(filled) == MAX_CATCH_UP_FRAMES
    assert buffer.next_deadline > 100.0
    assert buffer.skipped_ticks == pytest.approx((100 - 26 * 0.08) * RATE, abs=FRAME)


def test_a_longer_way_is_no_jitter_for_ever():
    transit = Transit()
    for k in range(400):
        transit.observe(0.1 if k >= 100 else 0.0, k * 0.02)
    assert transit.base == 0.1
    assert transit.target == MIN_TARGET_S
    assert transit.spread == 0.0
    transit.observe(0.05, 8.0)  # a shorter one is believed at once
    assert transit.base == 0.05
    assert transit.target == pytest.approx(0.055)


def test_a_few_late_packets_are_no_other_clock():
    buffer = JitterBuffer(FRAME)
    arrivals = [(0.0, packet(0))]
    for k, delay in ((1, 0.0625), (2, 0.125), (3, 0.19)):
        arrivals.append((k * 0.42 + delay, packet(k, skipped=20 * k * TICKS)))
    given_at = run(buffer, arrivals, 2.0)
    assert buffer.resyncs == 0
    assert numbers([item for _, item in given_at if isinstance(item, AudioPacket)]) == [0]


networks = st.lists(
    st.tuples(
        st.floats(0, 0.15),  # delay
        st.booleans() | st.just(False),  # lost
        st.booleans() | st.just(False),  # doubled
        st.sampled_from([0, 0, 0, 0, 0, 1, 3, 20]),  # packets of silence before it
    ),
    min_size=1,
    max_size=150,
)


@settings(max_examples=300)
@given(networks)
def test_every_tick_of_media_time_is_given_once_and_in_order(network):
    buffer = JitterBuffer(FRAME)
    arrivals, silent = [], 0
    for k, (delay, lost, doubled, silence) in enumerate(network):
        silent += silence
        sent = (k + silent) * 0.02
        copies = [] if lost else [delay, delay + 0.013] if doubled else [delay]
        arrivals += [(sent + d, packet(k, skipped=silent * TICKS)) for d in copies]
    end = (len(network) + silent) * 0.02 + 1.0
    given_at = run(buffer, arrivals, end)
    items = [item for _, item in given_at]
    packets = [n for n in numbers(items) if isinstance(n, int)]
    assert packets == sorted(set(packets))
    if not arrivals or buffer.resyncs:
        return
    # Each packet lies where its timestamp says, counted from the first one that came.
    position, skipped = 0, {}
    silent = 0
    for k, (_, _, _, silence) in enumerate(network):
        silent += silence
        skipped[k] = k + silent
    origin = None
    for item in items:
        if isinstance(item, AudioPacket):
            (k,) = numbers([item])
            origin = skipped[k] * TICKS - position if origin is None else origin
            assert position + origin == skipped[k] * TICKS
        position += item.ticks
    assert buffer.received == len(arrivals)
    assert len(packets) + buffer.late + buffer.duplicates == len(arrivals)
    filled = buffer.lost_ticks + buffer.dtx_ticks + buffer.absent_ticks
    assert filled == sum(item.ticks for item in items if isinstance(item, Gap))
    # Real time is never left behind by more than the largest patience.
    assert position >= (end - min(arrivals, key=lambda a: a[0])[0] - 0.16 - MAX_TARGET_S) * RATE


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 0.4),
    st.floats(0, 0.5),
    st.lists(st.floats(0, 0.004), min_size=16, max_size=16),
)
def test_delay_is_back_within_a_second_of_trouble(seed, outage_s, slow_by, noise):
    """Loss, then a burst of slow packets; one second later frames are as punctual as before."""
    buffer = JitterBuffer(FRAME)
    arrivals = []
    for k in range(250):
        sent = k * 0.02
        delay = noise[(seed + k) % 16]
        if 1.0 <= sent < 1.0 + outage_s:
            continue
        if 1.0 + outage_s <= sent < 1.5 + outage_s:
            delay += slow_by * (seed >> k % 32 & 1)
        arrivals.append((sent + delay, packet(k)))
    given_at = run(buffer, arrivals, 5.0)
    recovered = 1.5 + outage_s + slow_by + 1.0
    checked = 0
    for time, item in given_at:
        if isinstance(item, AudioPacket) and time > recovered:
            (k,) = numbers([item])
            assert time <= k * 0.02 + 0.004 + 1e-9
            checked += 1
    assert checked > 50
