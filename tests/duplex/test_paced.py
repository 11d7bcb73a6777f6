"""Sessions whose transport keeps the time: decoded audio in, nothing made up, nothing held back."""

import asyncio

import numpy as np
from running import F32, FRAME, audio_of, everything, noise, running, settled, until, waiting

from duplex.commands import AppendPcm, BargeIn
from duplex.events import Failed, OutputAudio, ResponseDone
from duplex.session import Mode
from duplex.settings import Settings
from media.clock import VirtualClock

SERVER = Settings(input_clock="server")


async def test_decoded_audio_passes_sample_by_sample():
    pcm = noise(6)
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32, paced=True)
        for start in range(0, len(pcm), 700):
            await session.handle(AppendPcm(pcm=pcm[start : start + 700], rate=24_000))
        await session.close("client_close")
        assert np.array_equal(audio_of(await everything(session)), pcm)


async def test_another_rate_is_resampled_and_must_not_change():
    async with running() as runtime:
        session = runtime.create_session("sess_1", SERVER, paced=True)
        await session.handle(AppendPcm(pcm=noise(4), rate=48_000))
        await session.handle(AppendPcm(pcm=noise(4), rate=24_000, event_id="mine"))
        failed = (await until(session, Failed))[-1]
        assert (failed.error.code, failed.error.event_id) == ("bad_audio", "mine")
        await session.close("client_close")
        assert len(audio_of(await everything(session))) == 2 * FRAME


async def test_no_silence_is_fed_in_place_of_the_transport():
    clock = VirtualClock()
    async with running(clock=clock) as runtime:
        for session_id, paced, fed in (("sess_1", False, True), ("sess_2", True, False)):
            session = runtime.create_session(session_id, SERVER, paced=paced)
            await session.handle(AppendPcm(pcm=noise(1), rate=24_000))
            await clock.advance(1.0)
            await settled(session)
            assert (session.fed > 1) == fed


async def test_a_client_that_reads_nothing_does_not_hold_its_audio_back():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32, paced=True)
        async with asyncio.timeout(5):
            for _ in range(100):
                await session.handle(AppendPcm(pcm=noise(1), rate=24_000))
                await settled(session)
        assert session.outbox.audio < 100


async def test_an_interrupt_reaches_the_transport_when_nothing_stale_is_left():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32, paced=True)
        left = []

        def take_back():
            left.append(session.outbox.audio)
            return 40.0

        session.take_back = take_back
        await session.handle(AppendPcm(pcm=noise(3), rate=24_000))
        await settled(session)
        assert session.outbox.audio == 3
        await session.handle(BargeIn())
        assert left == [0]
        await session.close("client_close")
        assert not len(audio_of(await everything(session)))


async def test_what_the_transport_takes_back_was_not_said():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32, Mode.TURNS, paced=True)
        session.take_back = lambda: 60.0
        await session.handle(AppendPcm(pcm=noise(3), rate=24_000))
        await settled(session)
        found = [event for event in await waiting(session) if isinstance(event, OutputAudio)]
        assert len(found) == 3  # the transport has them all
        await session.handle(BargeIn())
        done = (await until(session, ResponseDone))[-1]
        assert done.item.parts[0].audio_ms == 3 * 80 - 60
        await session.close("client_close")
