"""A peer whose event loop is held up: what waits in its socket meanwhile is late, not lost."""

import asyncio
import threading
import time

from rtc_client import Client, speech
from test_rtc_peer import Call

from media.clock import SystemClock
from media.opus import PACKET_SAMPLES
from media.rtc.peer import Peer

HELD_UP_S = 0.15
"""Much longer than a packet is waited for on this way, much shorter than a caller."""


class BusyLoop(SystemClock):
    """Other callbacks of the loop's same round come between a timer of the peer's input and what
    it is to do, and take long: once, when `busy` is set.
    """

    busy = False

    async def sleep_until(self, deadline: float) -> None:
        await super().sleep_until(deadline)
        task = asyncio.current_task()
        if self.busy and task is not None and task.get_coro().__qualname__ == "Peer._run":
            self.busy = False
            time.sleep(HELD_UP_S)  # noqa: ASYNC251


class Elsewhere:
    """An event loop in a thread of its own, which goes on sending while the peer's is held up."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def __call__(self, coroutine):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def new_client() -> Client:
    return Client(speech(4.0))


async def test_packets_that_wait_in_the_socket_are_not_given_up():
    elsewhere, clock = Elsewhere(), BusyLoop()
    client = await elsewhere(new_client())
    peer = await Peer.accept(await elsewhere(client.offer()), clock=clock)
    echo = Call(peer, client)
    try:
        await elsewhere(client.answered(peer.answer))
        await echo.until_heard(0.8)
        before = peer.stats().input.lost_samples
        clock.busy = True
        await echo.until_heard(1.6)
        assert not clock.busy
        # Seven were sent meanwhile. One may have come late by itself.
        assert peer.stats().input.lost_samples - before <= PACKET_SAMPLES
    finally:
        await peer.close()
        await echo._echo
        await elsewhere(client.close())
        elsewhere.stop()
