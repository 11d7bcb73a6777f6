"""The queue between a session and its connection."""

import asyncio

import numpy as np
import pytest

from duplex.events import HeartbeatAcknowledged, OutputAudio
from duplex.fence import Fence
from duplex.outbox import Outbox, OutboxOverflow
from media.formats import AudioFormat

PCM = np.zeros(1_920, np.float32)


def audio(index, epoch=0):
    fence = Fence("sess_1", epoch=epoch, response="resp_1")
    return OutputAudio(fence=fence, format=AudioFormat.PCM16, pcm=PCM, frame_index=index)


def box(**limits):
    return Outbox(**{"max_audio": 3, "max_lost": 4, "max_events": 2} | limits)


async def rest(outbox):
    outbox.close()
    found = []
    while (event := await outbox.get()) is not None:
        found.append(event)
    return found


async def test_the_oldest_audio_is_lost_first():
    outbox = box()
    events = [audio(index) for index in range(5)]
    outbox.put(HeartbeatAcknowledged())
    for event in events:
        outbox.put(event)
    assert (outbox.audio, outbox.dropped_audio) == (3, 2)
    assert await rest(outbox) == [HeartbeatAcknowledged(), *events[2:]]


async def test_a_reader_that_reads_nothing_is_given_up():
    outbox = box()
    for index in range(7):
        outbox.put(audio(index))
    with pytest.raises(OutboxOverflow):
        outbox.put(audio(7))
    outbox = box()
    outbox.put(HeartbeatAcknowledged())
    outbox.put(HeartbeatAcknowledged())
    with pytest.raises(OutboxOverflow):
        outbox.put(HeartbeatAcknowledged())


async def test_a_flush_takes_what_is_stale():
    outbox = box()
    outbox.put(audio(0))
    outbox.put(audio(1, epoch=1))
    assert outbox.flush(Fence("sess_1", epoch=1)).total() == 1
    assert [event.frame_index for event in await rest(outbox)] == [1]


async def test_a_frame_passes_the_queue_only_when_the_reader_has_nothing_to_do():
    outbox, passed = box(), []

    def express(event):
        passed.append(event.frame_index)
        return event.frame_index != 3

    outbox.express = express
    outbox.put(audio(0))  # nobody reads yet
    assert passed == []
    assert (await outbox.get()).frame_index == 0
    reader = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(audio(1))
    outbox.put(audio(2))
    assert passed == [1, 2]
    assert len(outbox) == 0
    outbox.put(audio(3))  # the socket doesn't take it: it and what follows wait in order
    outbox.put(audio(4))
    assert passed == [1, 2, 3]
    assert (await reader).frame_index == 3
    assert [event.frame_index for event in await rest(outbox)] == [4]


async def test_what_comes_after_the_close_is_gone():
    outbox = box()
    outbox.close()
    outbox.put(audio(0))
    assert await rest(outbox) == []
