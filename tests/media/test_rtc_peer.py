"""Peers against stock aiortc callers in this process, over real sockets."""

import asyncio
import contextlib
import gc
import io
import math
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import av
import numpy as np
import pytest
from aioice import stun
from aiortc import RTCPeerConnection, VideoStreamTrack
from relay import hide_candidates
from rtc_client import Client, speech
from test_rtc_audio import likeness

from media.rtc.aiortc_internals import names
from media.rtc.errors import ChannelFull, ChannelNotOpen, MessageTooLarge
from media.rtc.events import (
    AudioFrame,
    ChannelOpened,
    Closed,
    CloseReason,
    Event,
    ImageFormat,
    MessageReceived,
    PeerState,
    StateChanged,
)
from media.rtc.mailbox import MAX_MESSAGES
from media.rtc.peer import MAX_SOURCES, Peer
from media.rtc.settings import IceServer, PeerSettings

DEFAULTS = PeerSettings()


class Call:
    """A peer that echoes, and the caller it answers."""

    def __init__(self, peer: Peer, client: Client) -> None:
        self.peer = peer
        self.client = client
        self.events: list[Event] = []
        self.frames: list[AudioFrame] = []
        self._changed = asyncio.Event()
        self._echo = asyncio.create_task(self._serve())

    async def until(self, condition) -> None:
        """Waits until events have come that make this true."""
        async with asyncio.timeout(15):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_heard(self, seconds: float) -> None:
        await self.until(lambda: len(self.frames) * 0.08 >= seconds)

    def messages(self) -> list[str | bytes]:
        return [event.data for event in self.events if isinstance(event, MessageReceived)]

    async def end(self) -> None:
        await self.peer.close()
        await self._echo
        await self.client.close()

    async def _serve(self) -> None:
        async for event in self.peer:
            if isinstance(event, AudioFrame):
                self.frames.append(event)
                self.peer.send_audio(event.pcm)
            else:
                self.events.append(event)
            self._changed.set()


@contextlib.asynccontextmanager
async def call(client: Client, settings: PeerSettings = DEFAULTS) -> AsyncIterator[Call]:
    peer = await Peer.accept(await client.offer(), settings)
    echo = Call(peer, client)
    try:
        await client.answered(peer.answer)
        await client.connected()
        await client.opened.wait()
        yield echo
    finally:
        await echo.end()


def open_sockets() -> int:
    return sum(fd.startswith("socket:") for fd in _descriptors())


def live_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def all_others_ended() -> None:
    """Waits for every other task; one that hangs is a leak."""
    async with asyncio.timeout(2):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


def _descriptors() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def piecewise(heard: np.ndarray, said: np.ndarray) -> float:
    """The median correlation of 400 ms pieces, each where it fits best: a machine that stalls
    now and then moves pieces apart, and that is not what is asked here.
    """
    found = []
    for start in range(0, len(heard) - 9_600, 9_600):
        piece = said[start : start + 9_600]
        lag = max(0, likeness(heard, piece)[0])
        place = heard[lag : lag + len(piece)]
        norm = math.sqrt(float((place**2).sum() * (piece[: len(place)] ** 2).sum()))
        found.append(float(np.dot(place, piece[: len(place)])) / max(norm, 1e-9))
    return float(np.median(found))


async def test_a_voice_goes_in_and_comes_back():
    said = speech(2.5)
    async with call(Client(said)) as echo:
        await echo.until_heard(2.0)
        stats = echo.peer.stats()
        frames = [event.pcm for event in echo.frames]
        assert [event.index for event in echo.frames] == list(range(len(frames)))
    assert piecewise(np.concatenate(frames), said) > 0.8
    assert stats.input.packets >= len(frames) * 4
    assert stats.unread_frames == 0
    assert piecewise(np.concatenate(echo.client.heard)[::2], said) > 0.6
    kinds = [event for event in echo.events if not isinstance(event, MessageReceived)]
    assert kinds[0] == StateChanged(PeerState.CONNECTED)
    assert ChannelOpened() in kinds
    assert kinds[-1] == Closed(CloseReason.LOCAL)


async def test_messages_go_both_ways_in_order():
    async with call(Client()) as echo:
        await echo.until(lambda: ChannelOpened() in echo.events)
        for k in range(20):
            echo.client.channel.send(f"to {k}")
            echo.peer.send_message(f"from {k} ü")
        echo.peer.send_message("x" * 16384)
        await echo.until(lambda: len(echo.messages()) == 20)
        await echo.peer.close()  # a goodbye loses none of them
        await echo.client.until_received(21)
    assert echo.messages() == [f"to {k}" for k in range(20)]
    assert echo.client.messages[:20] == [f"from {k} ü" for k in range(20)]


async def test_what_the_channel_refuses():
    client = Client()
    peer = await Peer.accept(await client.offer())
    with pytest.raises(ChannelNotOpen):
        peer.send_message("too early")
    echo = Call(peer, client)
    await client.answered(peer.answer)
    await echo.until(lambda: ChannelOpened() in echo.events)
    with pytest.raises(MessageTooLarge, match="16385"):
        peer.send_message("x" * 16385)
    with pytest.raises(MessageTooLarge):
        peer.send_message("ü" * 8193)
    for _ in range(64):
        peer.send_message("x" * 16384)
    with pytest.raises(ChannelFull):
        peer.send_message("x" * 16384)
    await echo.end()
    with pytest.raises(ChannelNotOpen):
        peer.send_message("too late")


async def test_other_channels_are_closed():
    client = Client()
    stranger = client.pc.createDataChannel("chat")
    gone = asyncio.Event()
    stranger.on("close", gone.set)
    async with call(client) as echo:
        await gone.wait()
        assert echo.peer.state is PeerState.CONNECTED


async def test_messages_that_nobody_reads_end_the_peer():
    client = Client()
    peer = await Peer.accept(await client.offer())
    await client.answered(peer.answer)
    await client.opened.wait()
    for _ in range(MAX_MESSAGES + 1):
        client.channel.send("x")
    assert await peer.closed is CloseReason.OVERFLOW
    await client.close()


async def test_a_caller_without_candidates_is_waited_for():
    """Browsers often post the offer before they know their addresses."""
    client = Client(speech(1.0))
    peer = await Peer.accept(hide_candidates(await client.offer()))
    echo = Call(peer, client)
    await client.answered(peer.answer)
    await echo.until_heard(0.3)
    await echo.end()


async def test_only_host_candidates_unless_servers_are_configured():
    client = Client()
    peer = await Peer.accept(await client.offer())
    kinds = set(re.findall(r"a=candidate:.* typ (\w+)", peer.answer))
    assert kinds == {"host"}
    await peer.close()
    await client.close()


class IceServers(asyncio.DatagramProtocol):
    """A STUN server that takes a moment, and a TURN server that never answers, at one address."""

    def __init__(self):
        self.asked = Counter()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        message = stun.parse_message(data)
        self.asked[message.transaction_id] += 1
        if message.message_method is stun.Method.BINDING:
            answer = stun.Message(
                stun.Method.BINDING, stun.Class.RESPONSE, transaction_id=message.transaction_id
            )
            answer.attributes["XOR-MAPPED-ADDRESS"] = ("203.0.113.7", 4242)
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, self.transport.sendto, bytes(answer), address)


async def test_a_dead_relay_is_not_waited_for_and_a_server_that_answers_is():
    loop = asyncio.get_running_loop()
    transport, servers = await loop.create_datagram_endpoint(IceServers, ("0.0.0.0", 0))
    at = "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    ice_servers = (IceServer((f"stun:{at}",)), IceServer((f"turn:{at}",), "user", "secret"))
    client = Client()
    peer = await Peer.accept(await client.offer(), PeerSettings(ice_servers=ice_servers))
    # A STUN client asks at once, and again after 0.5, 1.5 and 3.5 s.
    assert len(servers.asked) >= 2
    assert max(servers.asked.values()) <= 2
    assert "203.0.113.7 4242 typ srflx" in peer.answer
    assert set(re.findall(r"a=candidate:.* typ (\w+)", peer.answer)) == {"host", "srflx"}
    await peer.close()
    await client.close()
    transport.close()


async def test_audio_only_is_enough():
    client = Client(speech(1.0))
    peer = await Peer.accept(await client.offer(channel=False))
    echo = Call(peer, client)
    await client.answered(peer.answer)
    await echo.until_heard(0.3)
    await echo.end()


async def test_video_that_nobody_wants_is_inactive_and_runs_nothing():
    client = Client(speech(1.0), video=VideoStreamTrack())
    async with call(client) as echo:
        await echo.until_heard(0.5)
        assert "a=inactive" in echo.peer.answer.split("m=video")[1].split("m=")[0]
        # The client decodes what it hears; the peer decodes in this thread.
        names = [thread.name for thread in threading.enumerate()]
        assert not any("video-decoder" in name for name in names)
        assert all(event.picture is None for event in echo.frames)


@pytest.mark.parametrize("format", list(ImageFormat))
async def test_pictures_come_with_the_audio_of_their_time(format: ImageFormat):
    client = Client(speech(3.0), video=VideoStreamTrack())
    async with call(client, PeerSettings(pictures=format)) as echo:
        pictures = [event.picture for event in echo.frames if event.picture]

        def enough() -> bool:
            pictures[:] = [event.picture for event in echo.frames if event.picture]
            return len(pictures) >= 3

        await echo.until(enough)
        assert echo.peer.stats().pictures >= len(pictures)
    picture = pictures[-1]
    assert (picture.width, picture.height, picture.format) == (640, 480, format)
    times = [picture.timestamp for picture in pictures]
    assert times == sorted(set(times))
    if format is ImageFormat.RGB:
        rgb = np.frombuffer(picture.data, np.uint8).reshape(480, 640, 3)
    else:
        with av.open(io.BytesIO(picture.data), format="mjpeg") as container:
            rgb = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert rgb[..., 1].mean() > rgb[..., 0].mean() + 50  # the track is green


async def test_sources_beyond_a_few_are_refused_and_the_voice_goes_on():
    async with call(Client(speech(3.0))) as echo:
        await echo.until_heard(0.4)
        sender = echo.client.pc.getSenders()[0]
        receiver = echo.peer._connection.getReceivers()[0]
        await echo.client.pretend(200)
        await echo.until(lambda: echo.peer.stats().refused_packets > 300)
        streams = getattr(receiver, names.STREAMS)
        assert len(streams) <= MAX_SOURCES
        assert len(receiver.transport._rtp_router.ssrc_table) <= MAX_SOURCES
        taken = streams[sender._ssrc].packets_received
        await echo.until(lambda: streams[sender._ssrc].packets_received > taken + 10)
        assert echo.peer.state is PeerState.CONNECTED


async def test_a_hang_up_is_noticed():
    client = Client()
    async with call(client) as echo:
        await client.close()
        assert await echo.peer.closed is CloseReason.REMOTE


async def test_a_caller_who_vanishes_is_gone_soon():
    client = Client(speech(2.0))
    async with call(client, PeerSettings(vanish_after_s=0.4)) as echo:
        await echo.until_heard(0.3)
        client.vanish()
        assert await echo.peer.closed is CloseReason.VANISHED


async def test_silence_that_is_not_sent_is_no_absence():
    client = Client(speech(5.0))
    async with call(client, PeerSettings(vanish_after_s=2.0)) as echo:
        await echo.until_heard(0.3)
        client.pc.getSenders()[0].track.stop()  # no RTP from now on; RTCP goes on
        await echo.until_heard(3.2)
        assert echo.peer.state is PeerState.CONNECTED
        assert echo.peer.stats().input.silence_samples > 1.5 * 24000


async def test_a_caller_who_never_comes_is_given_up():
    client = Client()
    peer = await Peer.accept(await client.offer(), PeerSettings(connect_timeout_s=0.1))
    assert await peer.closed is CloseReason.CONNECT_TIMEOUT
    events = [event async for event in peer]
    assert events == [StateChanged(PeerState.CLOSED), Closed(CloseReason.CONNECT_TIMEOUT)]
    await client.close()


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30, 60, 100, 200, 400])
async def test_closing_in_any_state_leaves_nothing(turns: int):
    sockets, threads = open_sockets(), threading.active_count()
    client = Client()
    peer = await Peer.accept(await client.offer())
    answered = asyncio.create_task(client.answered(peer.answer))
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    await asyncio.gather(peer.close(), peer.close())
    await peer.close()
    assert await peer.closed is CloseReason.LOCAL
    await answered
    await client.close()
    await all_others_ended()
    assert open_sockets() == sockets
    assert threading.active_count() == threads


async def test_an_answer_that_is_cancelled_leaves_nothing():
    client = Client()
    offer = await client.offer()
    sockets = open_sockets()
    for turns in range(12):
        accepting = asyncio.create_task(Peer.accept(offer))
        for _ in range(turns):
            await asyncio.sleep(0)
        accepting.cancel()
        await asyncio.wait([accepting])
        if not accepting.cancelled():
            await accepting.result().close()
    await client.close()
    await all_others_ended()
    assert open_sockets() < sockets  # the client's is gone too


async def test_a_connection_that_does_not_close_is_abandoned(monkeypatch, caplog):
    sockets, threads = open_sockets(), threading.active_count()
    client = Client(speech(1.0))
    peer = await Peer.accept(await client.offer(), PeerSettings(close_timeout_s=0.05))
    await client.answered(peer.answer)
    await client.opened.wait()
    close = RTCPeerConnection.close

    async def hang(connection: RTCPeerConnection) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RTCPeerConnection, "close", hang)
    await peer.close()
    assert "did not close" in caplog.text
    monkeypatch.setattr(RTCPeerConnection, "close", close)
    await client.close()
    await close(peer._connection)
    assert open_sockets() == sockets
    assert threading.active_count() == threads


async def test_many_calls_leave_no_task_thread_socket_or_object():
    async def one() -> None:
        async with call(Client()):
            pass

    for _ in range(5):
        await one()
    await all_others_ended()
    sockets, threads, objects = open_sockets(), threading.active_count(), live_objects()
    for _ in range(20):
        await one()
    await all_others_ended()
    assert open_sockets() == sockets
    assert threading.active_count() == threads
    assert live_objects() - objects < 20  # less than one for each call
