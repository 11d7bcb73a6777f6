"""Peers through a bad network: real sockets, and a relay that loses, delays and doubles."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest
from relay import Relay, Weather, hide_candidates
from rtc_client import Client, speech
from test_rtc_audio import likeness
from test_rtc_peer import Call

from media.opus import PACKET_SAMPLES
from media.rtc.events import ChannelOpened, PeerState
from media.rtc.peer import Peer

JITTER_S = 0.05


@contextlib.asynccontextmanager
async def call_through(relay: Relay, client: Client) -> AsyncIterator[Call]:
    peer = await Peer.accept(hide_candidates(await client.offer()))
    echo = Call(peer, client)
    try:
        await client.answered(await relay.through(peer.answer))
        await echo.until(lambda: ChannelOpened() in echo.events)
        await client.opened.wait()
        yield echo
    finally:
        relay.weather = Weather()
        await echo.end()
        await relay.close()


async def one_call(seed: int, loss: float) -> int:
    """How many of the caller's packets the network lost, of which the peer knows."""
    relay = Relay(seed)
    said = speech(4.0, seed)
    async with call_through(relay, Client(said)) as echo:
        await echo.until_heard(0.4)
        relay.weather = Weather(loss=loss, jitter_s=JITTER_S, doubled=0.02)
        await echo.until_heard(3.0)
        lost_packets = relay.counts.media_lost  # long enough ago to have been missed
        await echo.until_heard(3.4)
        assert echo.peer.state is PeerState.CONNECTED
        stats = echo.peer.stats()
        heard = np.concatenate([event.pcm for event in echo.frames])
    # The voice is there and where it belongs, in each second of it: no delay has added up.
    first = likeness(heard[:24000], said[:24000])[0]
    for second in range(3):
        part = slice(second * 24000, (second + 1) * 24000)
        lag, correlation = likeness(heard[part], said[part])
        assert abs(lag - first) <= 24
        assert correlation > 0.3
    assert np.abs(np.concatenate(echo.client.heard)).mean() > 0.02
    counts, gone = relay.counts, stats.input
    assert counts.lost > 0
    assert counts.doubled > 0
    assert gone.duplicate_packets == 0  # SRTP has refused what it had seen
    assert gone.lost_samples >= lost_packets * PACKET_SAMPLES
    assert gone.lost_samples < (3 * loss + 0.05) * len(heard)
    assert gone.jitter_s > 0.02
    assert stats.unread_frames == 0
    return lost_packets


async def test_audio_goes_on_through_loss_jitter_and_reordering():
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(one_call(seed, loss)) for seed, loss in enumerate([0.01, 0.05, 0.10])
        ]
    assert sum(call.result() for call in calls) > 0


async def test_an_outage_is_concealed_and_leaves_no_delay():
    relay = Relay(7)
    said = speech(5.0)
    async with call_through(relay, Client(said)) as echo:
        await echo.until_heard(0.8)
        relay.weather = Weather(loss=1.0)
        await echo.until_heard(1.3)  # the model's time goes on without packets
        relay.weather = Weather()
        await echo.until_heard(4.0)
        stats = echo.peer.stats()
        heard = np.concatenate([event.pcm for event in echo.frames])
    assert stats.input.lost_samples > 0.3 * 24000
    before = likeness(heard[:19200], said[:19200])[0]
    after = likeness(heard[-36000:], said[len(heard) - 36000 : len(heard)])
    assert abs(after[0] - before) <= 24
    assert after[1] > 0.7
    assert stats.output.backlog_s <= 0.1


@pytest.mark.parametrize("loss", [0.0, 0.10])
async def test_messages_arrive_over_a_small_mtu(loss: float):
    relay = Relay(3, Weather(mtu=1280))
    async with call_through(relay, Client()) as echo:
        relay.weather = Weather(mtu=1280, loss=loss)
        for k in range(4):
            echo.peer.send_message(str(k) * 16384)
            echo.client.channel.send(str(k) * 16384)
        await echo.client.until_received(4)
        await echo.until(lambda: len(echo.messages()) == 4)
    assert echo.client.messages == [str(k) * 16384 for k in range(4)]
    assert echo.messages() == echo.client.messages
    assert relay.counts.too_large == 0
