"""Turn-based clients on a lockstep model: echo is the agent, and a level the voice activity."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from running import (
    F32,
    FRAME,
    LevelVad,
    append,
    audio_of,
    everything,
    kinds,
    noise,
    running,
    settled,
    silence,
    until,
    waiting,
)

from duplex import commands as c
from duplex import events as e
from duplex.conversation import Item, Part
from duplex.session import Mode
from duplex.settings import SettingsPatch
from duplex.turns import TurnDetection, TurnDetectionPatch
from engine.echo import EchoModel
from media.clock import VirtualClock

DETECTION = TurnDetection(silence_duration_ms=200, prefix_padding_ms=0)
TURNS = replace(F32, turn_detection=DETECTION, overlap_policy="barge_in_on_speech")
RESPONSE = [e.ResponseCreated, e.ResponseDone]


async def talk(session, *sounds):
    for sound in sounds:
        for frame in sound.reshape(-1, FRAME):
            await session.handle(append(frame))
            await settled(session)


def create(runtime, settings=TURNS):
    session = runtime.create_session("sess_1", settings, Mode.TURNS)
    session.start()
    return session


async def test_a_turn_and_its_response():
    async with running(vad=LevelVad(), delay=12) as runtime:
        session = create(runtime)
        await talk(session, silence(1), noise(3), silence(30))
        found = (await waiting(session))[1:]
        assert kinds(found) == [
            e.UserStarted,
            e.UserStopped,
            e.InputCommitted,
            e.ItemAdded,
            e.ItemDone,
            e.ResponseCreated,
            e.ResponseDone,
        ]
        started, stopped, committed, added = found[:4]
        assert started.item_id == stopped.item_id == committed.item_id == added.item.id
        assert started.audio_ms == 64
        assert (added.item.role, added.item.parts[0].type) == ("user", "input_audio")
        done = found[-1]
        assert (done.status, done.reason, done.frames) == ("completed", None, 3 + 7)
        assert done.previous_item_id == added.item.id
        assert np.array_equal(audio_of(found)[: 3 * FRAME], noise(3))
        assert [item.role for item in session.conversation.items] == ["user", "assistant"]


async def test_the_agents_silence_is_not_sent():
    async with running(vad=LevelVad()) as runtime:
        session = create(runtime)
        await talk(session, silence(40))
        assert kinds(await waiting(session)) == [e.SessionCreated]


async def test_each_utterance_is_a_response():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await talk(session, noise(2, 1), silence(10), noise(2, 2), silence(10))
        found = (await waiting(session))[1:]
        assert kinds(found) == RESPONSE * 2
        ids = [event.response_id for event in found if isinstance(event, e.ResponseCreated)]
        assert len(set(ids)) == 2


async def test_speech_over_the_agent_interrupts_it_for_good():
    async with running(vad=LevelVad(), delay=12) as runtime:
        session = create(runtime, replace(TURNS, overlap_short_ack_ms=160, overlap_barge_in_ms=240))
        await talk(session, noise(20))
        found = (await waiting(session))[1:]
        assert kinds(found) == [
            e.UserStarted,
            e.ResponseCreated,
            e.ResponseDone,
            e.OverlapDecided,
        ]
        done, decided = found[-2:]
        assert (done.status, done.reason) == ("cancelled", "turn_detected")
        assert (decided.action, decided.policy) == ("barge_in", "barge_in_on_speech")
        await talk(session, silence(30))
        assert e.ResponseCreated not in kinds(await waiting(session))
        await talk(session, noise(2), silence(30))
        assert kinds(await waiting(session))[-2:] == RESPONSE


async def test_an_acknowledgement_does_not_interrupt():
    async with running(vad=LevelVad(), delay=12) as runtime:
        session = create(runtime, replace(TURNS, overlap_short_ack_ms=160, overlap_barge_in_ms=240))
        await talk(session, noise(11), silence(4), noise(1), silence(30))
        found = await waiting(session)
        decided = [event for event in found if isinstance(event, e.OverlapDecided)]
        assert [(event.action, event.reason) for event in decided] == [
            ("listen", "short_acknowledgement")
        ]
        done = [event for event in found if isinstance(event, e.ResponseDone)]
        assert [event.status for event in done] == ["completed"]


async def test_a_client_may_cancel():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await talk(session, noise(3))
        response = session.fence.response
        await session.handle(c.BargeIn(response_id=response, required=True))
        await talk(session, noise(3))
        found = (await waiting(session))[1:]
        assert kinds(found) == [*RESPONSE, e.OverlapDecided]
        assert (found[-2].status, found[-2].reason) == ("cancelled", "client_cancelled")
        assert len(audio_of(found)) == 0, "what was queued is dropped"


async def test_a_response_that_was_asked_for_takes_the_next_utterance():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await session.handle(c.CreateResponse())
        await session.handle(c.CreateResponse(event_id="again"))
        error = (await until(session, e.Failed))[-1].error
        assert error.code == "conversation_already_has_active_response"
        assert error.event_id == "again"
        await talk(session, silence(3), noise(2), silence(10))
        found = await waiting(session)
        assert kinds(found) == [e.ResponseDone]
        assert found[-1].frames == 9


async def test_a_response_that_was_asked_for_ends_empty_if_the_agent_says_nothing():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await session.handle(c.CreateResponse())
        await talk(session, silence(101))
        done = (await until(session, e.ResponseDone))[-1]
        assert (done.status, done.frames) == ("completed", 0)


async def test_a_manual_commit():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await session.handle(append(silence(1)))
        await session.handle(c.CommitInput())
        error = (await until(session, e.Failed))[-1].error
        assert error.code == "input_audio_buffer_commit_empty"
        await session.handle(append(silence(1)))
        await session.handle(c.CommitInput())
        found = await waiting(session)
        assert kinds(found) == [e.InputCommitted, e.ItemAdded, e.ItemDone]
        assert found[1].item.parts[0].audio_ms == 160
        await session.handle(append(silence(2)))
        await session.handle(c.ClearInput())
        await session.handle(c.CommitInput())
        assert kinds(await waiting(session)) == [e.InputCleared, e.Failed]


async def test_a_commit_within_speech_ends_that_turn_and_begins_another():
    async with running(vad=LevelVad()) as runtime:
        session = create(runtime, replace(TURNS, overlap_policy="listen_only"))
        await talk(session, noise(3))
        await session.handle(c.CommitInput())
        await talk(session, noise(3), silence(6))
        users = [
            event
            for event in await waiting(session)
            if isinstance(event, e.UserStarted | e.UserStopped | e.InputCommitted)
        ]
        assert kinds(users) == [
            e.UserStarted,
            e.InputCommitted,
            e.UserStarted,
            e.UserStopped,
            e.InputCommitted,
        ]
        first, second = users[0].item_id, users[2].item_id
        assert [event.item_id for event in users] == [first, first, second, second, second]
        assert first != second


class Talker(EchoModel):
    """An echo with a word for every frame."""

    def step(self, rows, pcm):
        result = super().step(rows, pcm)
        return replace(result, text=("word ",) * len(rows))


async def test_an_interrupted_answer_keeps_only_words_that_left():
    async with running(model=Talker) as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await talk(session, noise(2))
        await waiting(session)
        await talk(session, noise(3))
        await session.handle(c.BargeIn())
        done = (await until(session, e.ResponseDone))[-1]
        assert done.item.parts[0].text == "word word "
        assert done.item.parts[0].audio_ms == 160


async def test_an_answer_that_is_over_but_never_left_is_taken_back_too():
    async with running(model=Talker) as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None, max_output_tokens=2))
        await talk(session, noise(2))
        over = session.conversation.items[-1]
        assert (over.parts[0].words, over.status) == ("word word ", "incomplete")
        session.interrupt("client_cancelled")
        assert (over.parts[0].words, over.parts[0].audio_ms) == (None, 0)


async def test_a_late_clear_does_not_mute_the_next_answer():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await session.handle(c.ClearOutput())
        for _ in range(2):
            await session.handle(append(noise(2)))
            assert session.in_flight == 2
            await session.handle(c.ClearOutput())
            await settled(session)
            assert len(audio_of(await waiting(session))) == 2 * FRAME
            await talk(session, silence(9))
            await waiting(session)


async def test_a_text_client_gets_an_end_without_sending_audio():
    clock = VirtualClock()
    async with running(clock=clock, vad=LevelVad()) as runtime:
        session = create(runtime, replace(TURNS, input_clock="server"))
        await session.handle(c.CreateResponse())
        for _ in range(30):
            await clock.advance(0.5)
            await settled(session)
        done = (await until(session, e.ResponseDone))[-1]
        assert (done.status, done.frames) == ("completed", 0)
        assert done.heard >= 100
        await session.close("client_close")


async def test_silence_times_out():
    detection = replace(DETECTION, idle_timeout_ms=800)
    async with running(vad=LevelVad()) as runtime:
        session = create(runtime, replace(TURNS, turn_detection=detection))
        await talk(session, silence(14))
        found = (await waiting(session))[1:]
        assert kinds(found) == [e.UserTimedOut, e.InputCommitted, e.ItemAdded, e.ItemDone]
        assert found[0].item_id == found[1].item_id


async def test_items():
    async with running() as runtime:
        session = create(runtime)
        item = Item(id="item_1", role="user", parts=[Part(type="input_text", text="hi")])
        await session.handle(c.CreateItem(item=item))
        await session.handle(c.RetrieveItem(item_id="item_1"))
        await session.handle(c.DeleteItem(item_id="item_1"))
        await session.handle(c.RetrieveItem(item_id="item_1", event_id="gone"))
        found = (await waiting(session))[1:]
        assert kinds(found) == [e.ItemAdded, e.ItemDone, e.ItemRetrieved, e.ItemDeleted, e.Failed]
        assert (found[-1].error.code, found[-1].error.event_id) == ("item_not_found", "gone")


async def test_truncation_keeps_what_was_heard():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await talk(session, noise(4), silence(10))
        done = (await until(session, e.ResponseDone))[-1]
        length = done.item.parts[0].audio_ms
        for asked, kept in ((length + 60, length), (200, 200), (0, 0)):
            await session.handle(
                c.TruncateItem(item_id=done.item.id, content_index=0, audio_end_ms=asked)
            )
            assert (await until(session, e.ItemTruncated))[-1].audio_end_ms == kept


async def test_playback_acks():
    async with running() as runtime:
        session = create(runtime, replace(TURNS, turn_detection=None))
        await session.handle(c.AckPlayback(played_ms=1))
        error = (await until(session, e.Failed))[-1].error
        assert error.code == "playback_item_mismatch"
        await talk(session, noise(4))
        await session.handle(c.AckPlayback(played_ms=100, committed_ms=80))
        acked = (await until(session, e.PlaybackAcknowledged))[-1]
        assert (acked.played_ms, acked.committed_ms) == (100, 80)
        response = acked.response_id
        await session.handle(c.AckPlayback(played_ms=9_999, item_id=acked.item_id))
        acked = (await until(session, e.PlaybackAcknowledged))[-1]
        assert (acked.played_ms, acked.committed_ms) == (320, 320)
        await session.handle(c.AckPlayback(played_ms=1, item_id="item_other", response_id=response))
        error = (await until(session, e.Failed))[-1].error
        assert (error.code, error.param) == ("playback_item_mismatch", "item_id")
        await talk(session, silence(10))
        await session.handle(c.AckPlayback(played_ms=320, response_id=response))
        await until(session, e.PlaybackAcknowledged)
        await session.handle(c.CommitInput())
        await session.handle(c.AckPlayback(played_ms=320, response_id=response))
        error = (await until(session, e.Failed))[-1].error
        assert error.code == "playback_ack_too_late"


async def test_a_server_clock_feeds_silence_to_a_mute_caller():
    clock = VirtualClock()
    async with running(clock=clock, vad=LevelVad(), max_in_flight=64) as runtime:
        session = create(runtime, replace(TURNS, input_clock="server"))
        await session.handle(c.UpdateSession(patch=SettingsPatch()))
        assert session.fed == 0
        await clock.advance(0.1)
        assert session.fed == 0
        await clock.advance(1.0)
        assert session.fed == 12
        assert runtime.metrics.concealed_frames == 12
        await session.handle(append(noise(2)))
        assert session.fed == 14
        await clock.advance(0.1)
        assert session.fed == 14
        await clock.advance(0.1)
        assert session.fed == 15
        await session.close("client_close")


async def test_stale_frames_never_leave_after_the_epoch_moves():
    async with running(vad=LevelVad(), delay=12) as runtime:
        session = create(runtime, replace(TURNS, overlap_short_ack_ms=80, overlap_barge_in_ms=160))
        epochs = []

        async def read():
            while (event := await session.outbox.get()) is not None:
                if isinstance(event, e.OutputAudio):
                    epochs.append((event.fence.epoch, session.fence.epoch))

        reader = asyncio.create_task(read())
        for seed in range(5):
            await talk(session, noise(15, seed), silence(20))
        await session.close("client_close")
        await reader
        assert session.fence.epoch > 0
        assert all(made == current for made, current in epochs)


sounds = st.integers(0, 3).map(lambda n: append(noise(n))) | st.integers(0, 12).map(
    lambda n: append(silence(n))
)
ids = st.sampled_from(["item_1", "item_2", "resp_1"])
anything = st.lists(
    sounds
    | st.sampled_from(
        [
            c.CommitInput(),
            c.CommitInput(may_be_empty=True),
            c.ClearInput(),
            c.CreateResponse(),
            c.CreateResponse(text_only=True, max_output_tokens=2, metadata={"a": "b"}),
            c.UpdateSession(patch=SettingsPatch(max_output_tokens=2)),
            c.UpdateSession(patch=SettingsPatch(playback_commit_policy="commit_all_on_done")),
            c.UpdateSession(patch=SettingsPatch(input_clock="client")),
            c.BargeIn(),
            c.BargeIn(required=True),
            c.ClearOutput(),
            c.Heartbeat(),
            c.AckEvent(server_event_seq=1),
            c.AckPlayback(played_ms=100.0),
            c.AckPlayback(played_ms=1e9, truncate=True),
            c.SignalTurn(event="x"),
            c.AppendText(text="x"),
            c.UpdateSession(patch=SettingsPatch(turn_detection=None)),
            c.UpdateSession(
                patch=SettingsPatch(turn_detection=TurnDetectionPatch(silence_duration_ms=200))
            ),
            c.UpdateSession(patch=SettingsPatch(voice="nobody")),
            c.UpdateSession(patch=SettingsPatch(output_text_only=True)),
            c.AppendText(text="x"),
            append(np.zeros(3, np.float32), rate=7),
        ]
    )
    | st.builds(c.DeleteItem, item_id=ids)
    | st.builds(c.RetrieveItem, item_id=ids)
    | st.builds(lambda i: c.CreateItem(item=Item(id=i, role="user")), ids)
    | st.builds(
        c.TruncateItem,
        item_id=ids,
        content_index=st.integers(-1, 2),
        audio_end_ms=st.floats(-10, 1e6),
    ),
    max_size=25,
)


@pytest.mark.parametrize("mode", Mode)
@settings(max_examples=60)
@given(script=anything)
def test_whatever_a_client_does(mode, script):
    """Nothing raises, every response that starts ends once, and no id is used twice."""

    async def run():
        async with running(vad=LevelVad(), delay=3) as runtime:
            session = runtime.create_session("sess_1", TURNS, mode)
            session.start()
            found = []

            async def read():
                found.extend(await everything(session))

            reader = asyncio.create_task(read())
            for command in script:
                await session.handle(command)
            await session.close("client_close")
            await reader
            assert runtime.metrics.engine_losses == 0
            return found

    found = asyncio.run(run())
    assert isinstance(found[0], e.SessionCreated)
    assert isinstance(found[-1], e.SessionClosed)
    created = [event.response_id for event in found if isinstance(event, e.ResponseCreated)]
    done = [event.response_id for event in found if isinstance(event, e.ResponseDone)]
    assert created == done
    assert len(set(created)) == len(created)
    committed = [event.item_id for event in found if isinstance(event, e.InputCommitted)]
    added = [event.item.id for event in found if isinstance(event, e.ItemAdded)]
    agents = [event.item.id for event in found if isinstance(event, e.ResponseCreated)]
    assert max(Counter(committed + agents).values(), default=1) == 1
    assert set(committed) <= set(added)
    current = None
    for event in found:
        match event:
            case e.ResponseCreated():
                assert current is None
                current = event.response_id
            case e.ResponseDone():
                assert current == event.response_id
                current = None
            case e.OutputAudio() | e.OutputText():
                assert event.fence.response == current
