"""Sessions on a real engine of echo slots."""

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace
from running import (
    F32,
    FRAME,
    all_free,
    append,
    audio_of,
    everything,
    kinds,
    noise,
    running,
    settled,
    until,
)

from duplex.commands import (
    AppendAudio,
    BargeIn,
    ClearInput,
    CloseSession,
    CommitInput,
    Heartbeat,
    UpdateSession,
)
from duplex.events import (
    Failed,
    HeartbeatAcknowledged,
    InputCleared,
    InputCommitted,
    ItemAdded,
    ItemDone,
    OutputAudio,
    OverlapDecided,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionUpdated,
)
from duplex.settings import SettingsPatch
from engine.echo import EchoModel
from media.clock import VirtualClock
from media.formats import AudioFormat


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("chunk", [FRAME, 700, 5_000])
async def test_echo_is_sample_exact(delay, chunk):
    pcm = noise(30.5)
    async with running(delay=delay) as runtime:
        session = runtime.create_session("sess_1", F32)
        session.start()
        for start in range(0, len(pcm), chunk):
            await session.handle(append(pcm[start : start + chunk]))
        await session.handle(CloseSession())
        found = await everything(session)
        await all_free(runtime)
    padded = np.concatenate([pcm, np.zeros(-len(pcm) % FRAME, np.float32)])
    whole = padded[: len(padded) - delay * FRAME]
    assert np.array_equal(audio_of(found), whole)
    assert kinds(found) == [SessionCreated, ResponseCreated, ResponseDone, SessionClosed]
    assert [event.frame_index for event in found if isinstance(event, OutputAudio)] == list(
        range(31 - delay)
    )
    assert found[-2].status == "completed"
    assert found[-2].frames == 31 - delay
    assert runtime.metrics.padded_samples == FRAME // 2


async def test_a_session_without_audio_has_no_response():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(UpdateSession(patch=SettingsPatch()))
        await session.handle(CloseSession())
        assert kinds(await everything(session)) == [SessionCreated, SessionUpdated, SessionClosed]


async def test_the_slot_is_taken_at_the_first_update_and_given_back_at_close():
    async with running(slots=1) as runtime:
        first, second = (runtime.create_session(f"sess_{i}", F32) for i in (1, 2))
        assert (await runtime.engine.stats()).free == 1
        await first.handle(UpdateSession(patch=SettingsPatch()))
        assert (await runtime.engine.stats()).free == 0
        await second.handle(append(noise(1)))
        refusal, closed = await everything(second)
        assert (refusal.error.code, refusal.error.fatal) == ("resource_exhausted", True)
        assert closed.reason == "resource_exhausted"
        await first.close("client_close")
        third = runtime.create_session("sess_3", F32)
        await third.handle(append(noise(1)))
        await third.handle(CloseSession())
        assert len(audio_of(await everything(third))) == FRAME


async def test_sessions_dont_hear_each_other():
    async with running(slots=3) as runtime:
        sounds = [noise(20, seed) for seed in range(3)]
        sessions = [runtime.create_session(f"sess_{i}", F32) for i in range(3)]

        async def talk(session, pcm):
            for frame in pcm.reshape(-1, FRAME):
                await session.handle(append(frame))
            await session.handle(CloseSession())
            return await everything(session)

        found = await asyncio.gather(*map(talk, sessions, sounds))
        for pcm, events in zip(sounds, found, strict=True):
            assert np.array_equal(audio_of(events), pcm)
        responses = {
            event.response_id
            for events in found
            for event in events
            if isinstance(event, ResponseCreated)
        }
        assert len(responses) == 3


async def test_bad_audio_leaves_the_session_as_it_was():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        pcm = noise(2)
        await session.handle(append(pcm[:1_000]))
        for bad in (
            AppendAudio(audio=b"123", event_id="odd"),
            append(np.full(4, np.nan, np.float32), event_id="nan"),
            append(pcm[:10], rate=16_000, event_id="rate"),
            append(pcm[:10], rate=5, event_id="rate"),
            AppendAudio(audio=bytes(400_001), event_id="odd after seconds"),
            append(np.append(noise(50), np.float32(np.nan)), event_id="nan after seconds"),
        ):
            await session.handle(bad)
            error = (await until(session, Failed))[-1].error
            assert (error.code, error.event_id) == ("bad_audio", bad.event_id)
        await session.handle(append(pcm[1_000:]))
        await session.handle(CloseSession())
        assert np.array_equal(audio_of(await everything(session)), pcm)
        assert runtime.metrics.errors["bad_audio"] == 6


async def test_an_update_is_applied_whole_or_not_at_all():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        patch = SettingsPatch(voice="nobody", output_format=AudioFormat.PCM16)
        await session.handle(UpdateSession(patch=patch, event_id="e1"))
        error = (await until(session, Failed))[-1].error
        assert (error.code, error.param, error.event_id) == ("invalid_value", "voice", "e1")
        assert session.settings == F32
        await session.handle(UpdateSession(patch=SettingsPatch(output_format=AudioFormat.PCM16)))
        updated = (await until(session, SessionUpdated))[-1]
        assert updated.settings.output_format is AudioFormat.PCM16


async def test_what_the_slot_was_opened_with_is_fixed_by_the_first_frame():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(append(noise(1)))
        await session.handle(UpdateSession(patch=SettingsPatch(seed=3)))
        error = (await until(session, Failed))[-1].error
        assert (error.code, error.param) == ("invalid_value", "seed")


async def test_barge_in_drops_what_was_made_before_and_the_stream_goes_on():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        before, after = noise(4, 1), noise(4, 2)
        await session.handle(append(before))
        while session.in_flight:
            await asyncio.sleep(0)
        await session.handle(BargeIn(required=True))
        await session.handle(append(after))
        await session.handle(CloseSession())
        found = await everything(session)
        assert np.array_equal(audio_of(found), after)
        assert {event.fence.epoch for event in found if isinstance(event, OutputAudio)} == {1}
        assert kinds(found)[1:] == [
            ResponseCreated,
            OverlapDecided,
            ResponseDone,
            SessionClosed,
        ]
        assert runtime.metrics.flushed_frames == 4


async def test_the_barge_in_of_one_takes_nothing_from_another():
    async with running() as runtime:
        one, other = (runtime.create_session(f"sess_{k}", F32) for k in (1, 2))
        said = noise(6)
        await one.handle(append(noise(1)))
        await until(one, OutputAudio)
        await other.handle(append(said[: 3 * FRAME]))
        await settled(other)
        await other.handle(append(said[3 * FRAME :]))
        assert (len(other.outbox) > 0, other.in_flight) == (True, 3)
        await one.handle(BargeIn(required=True))
        await other.handle(CloseSession())
        assert np.array_equal(audio_of(await everything(other)), said)
        assert runtime.metrics.stale_frames == runtime.metrics.flushed_frames == 0


async def test_frames_under_way_at_a_barge_in_are_stale():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(append(noise(1)))
        await until(session, OutputAudio)
        await session.handle(append(noise(3)))
        assert session.in_flight == 3
        await session.handle(BargeIn())
        await session.handle(CloseSession())
        assert len(audio_of(await everything(session))) == 0
        assert runtime.metrics.stale_frames == 3


async def test_a_late_barge_in_names_its_response_and_misses_the_next():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(BargeIn(required=True))
        error = (await until(session, Failed))[-1].error
        assert error.code == "response_cancel_not_active"
        await session.handle(append(noise(1)))
        await until(session, OutputAudio)
        await session.handle(BargeIn(response_id="resp_other", required=True))
        error = (await until(session, Failed))[-1].error
        assert (error.code, error.param) == ("response_cancel_not_active", "response_id")
        assert session.fence.epoch == 0


async def test_small_commands():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(CommitInput())
        error = (await until(session, Failed))[-1].error
        assert error.code == "input_audio_buffer_commit_empty"
        await session.handle(CommitInput(may_be_empty=True))
        await session.handle(CommitInput(may_be_empty=True))
        await session.handle(Heartbeat())
        found = await until(session, HeartbeatAcknowledged)
        assert kinds(found) == [InputCommitted, ItemAdded, ItemDone] * 2 + [HeartbeatAcknowledged]
        first, second = found[0], found[3]
        assert (first.previous_item_id, second.previous_item_id) == (None, first.item_id)
        await session.handle(append(noise(0.5)))
        await session.handle(ClearInput())
        await until(session, InputCleared)
        pcm = noise(1, 5)
        await session.handle(append(pcm))
        await session.handle(CloseSession())
        assert np.array_equal(audio_of(await everything(session)), pcm)


async def test_a_client_clocked_sender_waits_for_room():
    async with running(max_in_flight=4) as runtime:
        session = runtime.create_session("sess_1", F32)
        most = 0
        found = asyncio.create_task(everything(session))
        task = asyncio.create_task(session.handle(append(noise(60))))
        while not task.done():
            most = max(most, session.in_flight)
            await asyncio.sleep(0)
        assert 0 < most <= 4
        await session.close("client_close")
        await found


async def test_a_sender_who_doesnt_read_is_not_read_from_either():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        pcm = noise(120)
        task = asyncio.create_task(session.handle(append(pcm)))
        while len(session.outbox) < 32:
            await asyncio.sleep(0)
        await settled(session)
        assert not task.done()
        found = asyncio.create_task(everything(session))
        await task
        await session.close("client_close")
        assert np.array_equal(audio_of(await found), pcm)


async def test_a_reader_that_never_reads_loses_audio_then_its_connection():
    async with running() as runtime:
        session = runtime.create_session("sess_1", replace(F32, input_clock="server"))
        broken = asyncio.Event()
        session.on_broken = broken.set
        for _ in range(200):
            await session.handle(append(noise(1)))
        await asyncio.wait_for(broken.wait(), 5)
        assert runtime.metrics.slow_readers == 1
        assert runtime.metrics.dropped_frames > 0
        assert runtime.metrics.sessions_closed == {"slow_reader": 1}
        await all_free(runtime)


async def test_an_idle_session_expires():
    clock = VirtualClock()
    async with running(clock=clock) as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(UpdateSession(patch=SettingsPatch(idle_timeout_s=5.0)))
        await clock.advance(4.5)
        await session.handle(Heartbeat())
        await clock.advance(4.5)
        assert session.id in runtime.sessions
        await clock.advance(2.5)
        found = await everything(session)
        assert kinds(found)[-2:] == [SessionExpired, SessionClosed]
        assert session.id not in runtime.sessions


async def test_a_cancelled_close_still_gives_the_slot_back():
    async with running(slots=1) as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(append(noise(3)))
        task = asyncio.create_task(session.close("disconnected"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await everything(session)
        await all_free(runtime)
        assert not runtime.sessions


async def test_two_hundred_sequential_sessions_leak_no_slot():
    async with running(slots=2) as runtime:
        for index in range(200):
            session = runtime.create_session(f"sess_{index}", F32)
            pcm = noise(2, index)
            await session.handle(append(pcm))
            await session.close("client_close")
            assert np.array_equal(audio_of(await everything(session)), pcm)
        assert (await all_free(runtime)).frames == 400
        assert not runtime.sessions


async def test_draining_refuses_newcomers_and_waits_for_the_rest():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        await session.handle(append(noise(1)))
        assert not await runtime.drain(0.01)
        with pytest.raises(Exception, match="shutting down"):
            runtime.create_session("sess_2", F32)
        await session.close("client_close")
        assert await runtime.drain(1)


class Breaking(EchoModel):
    """Fails at the third step."""

    steps = 0

    def step(self, rows, pcm):
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("out of luck")
        return super().step(rows, pcm)


async def test_the_engines_death_ends_its_sessions_with_a_clear_error():
    async with running(model=Breaking) as runtime:
        session = runtime.create_session("sess_1", F32)
        for _ in range(3):
            await session.handle(append(noise(1)))
        found = await asyncio.wait_for(everything(session), 5)
        failure = next(event for event in found if isinstance(event, Failed))
        assert failure.error.code == "internal_error"
        assert "luck" not in failure.error.message
        assert kinds(found)[-2:] == [ResponseDone, SessionClosed]
        assert found[-2].status == "failed"
        assert found[-1].reason == "internal_error"
        assert runtime.metrics.engine_losses == 1
        assert not runtime.sessions
