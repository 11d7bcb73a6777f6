"""Real speech over a real socket: the turns that the server hears, and what it makes of them."""

import asyncio
import base64

import numpy as np
import pytest

from media.clips import read_clip
from tests.turn_events import TURN

FRAME = 1_920
RATE = 24_000
PATH = "/v1/realtime?model=gpt-realtime"


@pytest.fixture
def speech(recording):
    """[n] samples: words from 3 s to 8 s and from 21 s to 26 s, silence around them."""
    return read_clip(recording.read_bytes(), RATE, max_s=60)


async def say(caller, pcm):
    """Sends it in pieces that are no frames, as fast as the server takes them."""
    sound = (pcm * 32767).astype("<i2")
    for start in range(0, len(sound), 1_200):
        audio = base64.b64encode(sound[start : start + 1_200].tobytes()).decode()
        await caller.send("input_audio_buffer.append", audio=audio)


async def two_turns(caller, speech, silence_ms):
    """Says both, each of which so much silence ends; returns all events up to the second answer."""
    detection = {"type": "server_vad", "silence_duration_ms": silence_ms}
    session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    await caller.send("session.update", session=session)
    await caller.until("session.updated")
    start = len(caller.seen)
    sending = asyncio.create_task(say(caller, speech[: 38 * RATE]))
    for _ in range(2):
        await caller.until("response.done")
    await sending
    return caller.seen[start:]


async def test_two_turns_of_a_recorded_voice(start_server, call, speech):
    # echo answers 8 s later, when its user is silent
    async with start_server(delay_frames=100) as server, call(server, PATH) as caller:
        events = await two_turns(caller, speech, silence_ms=500)
        found = [event for event in events if not event["type"].endswith(".delta")]
        assert [event["type"] for event in found] == TURN * 2

        turns = [found[: len(TURN)], found[len(TURN) :]]
        for turn, begins, ends in zip(turns, (3.0, 21.0), (8.0, 26.0), strict=True):
            started, stopped, committed, added = turn[:4]
            assert begins - 0.5 < started["audio_start_ms"] / 1000 < begins + 0.5
            assert ends - 0.5 < stopped["audio_end_ms"] / 1000 < ends + 1.5
            ids = {started["item_id"], stopped["item_id"], committed["item_id"]}
            assert ids == {added["item"]["id"]}
            done = turn[-1]["response"]
            assert done["status"] == "completed"
            assert 4.5 < done["usage"]["output_tokens"] * 0.08 < 7
        limits = turns[1][9]["rate_limits"]
        assert limits[0]["name"] == "requests"
        assert 0 < limits[0]["remaining"] <= limits[0]["limit"] == 100


async def test_speech_over_the_agents_interrupts_it(start_server, call, speech):
    # echo answers 1 s later, while its user still speaks
    async with start_server(delay_frames=12) as server, call(server, PATH) as caller:
        await caller.send("session.update", session={"type": "realtime"})
        await caller.until("session.updated")
        start = len(caller.seen)
        await say(caller, speech[: 9 * RATE])
        done = (await caller.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        await caller.until("input_audio_buffer.committed")
        kinds = [event["type"] for event in caller.seen[start:]]
        assert kinds[0] == "input_audio_buffer.speech_started"
        late = kinds[kinds.index("response.done") :]
        assert "response.output_audio.delta" not in late
        heard = np.frombuffer(
            b"".join(
                base64.b64decode(event["delta"])
                for event in caller.seen[start:]
                if event["type"] == "response.output_audio.delta"
            ),
            "<i2",
        )
        assert 0 < len(heard) < 2 * RATE


async def test_an_answer_that_comes_early_stands_after_its_question(start_server, call, speech):
    # echo answers 5 s later: the user has fallen silent, but may be about to go on
    async with start_server(delay_frames=65) as server, call(server, PATH) as caller:
        found = await two_turns(caller, speech, silence_ms=2_000)
        kinds = [event["type"] for event in found]
        committed = kinds.index("input_audio_buffer.committed")
        assert kinds.index("response.created") < committed < kinds.index("response.done")

        order = []
        for event in found:
            if event["type"] == "conversation.item.added":
                before = event["previous_item_id"]
                place = order.index(before) + 1 if before else 0
                order.insert(place, event["item"]["id"])
        roles = {
            event["item"]["id"]: event["item"]["role"]
            for event in found
            if event["type"] == "conversation.item.added"
        }
        assert [roles[item] for item in order] == ["user", "assistant"] * 2
