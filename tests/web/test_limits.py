import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.errors import ApiError
from web.limits import ConnectionLimit, TokenBucket, WriteDeadline

times = st.lists(st.floats(0, 10, allow_nan=False), max_size=40).map(sorted)


@given(times, st.floats(0.5, 20), st.integers(1, 10))
def test_a_bucket_never_gives_more_than_burst_and_rate(moments, rate, burst):
    bucket = TokenBucket(rate, burst, 0.0)
    taken = [moment for moment in moments if bucket.take(moment)]
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - taken[first]) * rate
            assert last - first + 1 <= allowed + 1e-6


@given(st.integers(1, 50), st.floats(1, 100))
def test_a_bucket_gives_all_of_its_burst_and_then_its_rate(burst, rate):
    bucket = TokenBucket(rate, burst, 0.0)
    assert all(bucket.take(0.0) for _ in range(burst))
    assert not bucket.take(0.0)
    assert bucket.take(1.001 / rate)


@given(st.integers(1, 200), st.integers(1, 50), st.floats(1, 1000))
def test_taking_later_spaces_out_what_exceeds_the_burst(count, burst, rate):
    bucket = TokenBucket(rate, burst, 0.0)
    waits = [bucket.take_later(0.0) for _ in range(count)]
    assert waits == pytest.approx([max(0, n + 1 - burst) / rate for n in range(count)])


def test_a_large_message_counts_as_many():
    bucket = TokenBucket(10, 5, 0.0)
    assert bucket.take_later(0.0, 4) == 0
    assert bucket.take_later(0.0, 11) == pytest.approx(1)


def test_connections_are_counted_in_all_and_by_client():
    limit = ConnectionLimit(total=3, per_client=2)
    with limit.hold("a"), limit.hold("a"):
        with pytest.raises(ApiError) as caught, limit.hold("a"):
            pass
        assert caught.value.status == 429
        with limit.hold("b"):
            assert limit.open == 3
            with pytest.raises(ApiError), limit.hold("c"):
                pass
    assert limit.open == 0
    with limit.hold("a"):
        assert limit.open == 1


def test_a_failed_connection_gives_its_place_back():
    limit = ConnectionLimit(total=1, per_client=1)
    with pytest.raises(RuntimeError), limit.hold("a"):
        raise RuntimeError
    with limit.hold("a"):
        pass


async def test_a_write_that_does_not_end_is_noticed():
    noticed = asyncio.Event()
    deadline = WriteDeadline(0.02, noticed.set)
    deadline.begin()
    await noticed.wait()


async def test_writes_that_end_are_not_and_later_ones_get_their_whole_time():
    loop = asyncio.get_running_loop()
    noticed: asyncio.Future[float] = loop.create_future()
    deadline = WriteDeadline(0.05, lambda: noticed.set_result(loop.time()))
    deadline.begin()
    deadline.end()
    await asyncio.sleep(0.03)
    again = loop.time()
    deadline.begin()
    assert await noticed - again >= 0.05


async def test_no_timer_is_left_behind():
    deadline = WriteDeadline(0.01, lambda: pytest.fail("it was cancelled"))
    deadline.begin()
    deadline.cancel()
    await asyncio.sleep(0.02)
