"""The caller's audio on its way down: images, and speech detection that can't keep up."""

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace
from running import (
    F32,
    FRAME,
    LevelStream,
    LevelVad,
    append,
    audio_of,
    everything,
    noise,
    running,
    silence,
)

from duplex.commands import AppendAudio, AppendPcm
from duplex.events import OutputAudio
from duplex.session import Mode
from duplex.turns import TurnDetection
from media.clock import VirtualClock
from media.formats import INPUT_FORMATS, decode, encode


async def test_images_go_with_the_frame_that_their_chunk_completes():
    async with running() as runtime:
        frames, feed = [], runtime.feed

        def keep(frame):
            frames.append(frame)
            feed(replace(frame, video=()))  # echo takes none

        runtime.feed = keep
        session = runtime.create_session("sess_1", F32)
        await session.handle(append(noise(0.5), video=(b"one",)))
        await session.handle(append(noise(0.25), video=(b"two", b"three")))
        await session.handle(append(noise(1.25)))
        await session.handle(append(noise(1), video=(b"four",)))
        assert [frame.video for frame in frames] == [(b"two", b"three"), (), (b"four",)]


async def test_of_a_camera_the_latest_image_counts():
    async with running() as runtime:
        frames, feed = [], runtime.feed

        def keep(frame):
            frames.append(frame)
            feed(replace(frame, video=()))

        runtime.feed = keep
        session = runtime.create_session("sess_1", F32)
        for image in (b"one", b"two", None, b"three", None, None):
            half = np.zeros(960, np.float32)
            await session.handle(AppendPcm(pcm=half, rate=24_000, image=image))
        assert [frame.video for frame in frames] == [(b"two",), (b"three",), ()]


class SlowVad(LevelVad):
    """Looks at windows only when it is told to."""

    def stream(self, sample_rate, on_speech):
        self.made = SlowStream(on_speech)
        return self.made


class SlowStream(LevelStream):
    def __init__(self, on_speech):
        super().__init__(on_speech)
        self.waiting = []

    def push(self, pcm):
        self.waiting += self.framer.push(pcm)

    def look(self):
        count = len(self.waiting)
        self.waiting.clear()
        self.on_speech([0.0] * count)


async def test_a_caller_faster_than_speech_detection_waits_for_it():
    vad = SlowVad()
    settings = replace(F32, turn_detection=TurnDetection(), input_clock="server")
    async with running(vad=vad) as runtime:
        session = runtime.create_session("sess_1", settings, Mode.TURNS)
        sending = asyncio.create_task(session.handle(append(silence(40))))
        async with asyncio.timeout(10):
            while not sending.done():
                await asyncio.sleep(0)
                if hasattr(vad, "made"):
                    assert len(vad.made.waiting) < 12
                    if len(vad.made.waiting) >= 8:
                        vad.made.look()
        assert session.fed == 40


async def test_minutes_in_one_chunk_are_taken_a_piece_at_a_time():
    async with running(max_in_flight=2) as runtime:
        session = runtime.create_session("sess_1", F32)
        said = noise(700)
        sending = asyncio.create_task(session.handle(append(said)))
        heard = []
        while len(heard) < 700:
            event = await asyncio.wait_for(session.outbox.get(), 10)
            if isinstance(event, OutputAudio):
                heard.append(event.pcm)
            assert session.intake._input.frames_out <= len(heard) + 32 + 2 + 13
        await sending
        assert np.array_equal(np.concatenate(heard), said)


@pytest.mark.parametrize("format", sorted(INPUT_FORMATS))
async def test_a_long_chunk_is_what_it_is_in_any_format(format):
    said = encode(format, noise(40))
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        heard = asyncio.create_task(everything(session))
        await session.handle(AppendAudio(audio=said, format=format))
        await session.close("client_close")
        assert np.array_equal(audio_of(await heard), decode(format, said))


async def test_what_was_taken_when_its_sender_was_cut_is_fed_in_order():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        said = noise(60)
        sending = asyncio.create_task(session.handle(append(said)))
        async with asyncio.timeout(10):
            while len(session.outbox) < 32:  # nobody reads: the rest waits
                await asyncio.sleep(0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        taken = session.intake.taken_samples
        assert session.fed * FRAME < taken < len(said)
        heard = asyncio.create_task(everything(session))
        await session.handle(append(said[taken:]))
        assert session.intake.taken_samples == len(said)
        await session.close("client_close")
        assert np.array_equal(audio_of(await heard), said)


async def test_no_silence_cuts_into_a_chunk_that_waits_to_be_fed():
    vad, clock = SlowVad(), VirtualClock()
    settings = replace(F32, turn_detection=TurnDetection(), input_clock="server")
    async with running(vad=vad, clock=clock) as runtime:
        frames, feed = [], runtime.feed

        def keep(frame):
            frames.append(frame.pcm)
            feed(frame)

        runtime.feed = keep
        session = runtime.create_session("sess_1", settings, Mode.TURNS)
        said = noise(40)
        sending = asyncio.create_task(session.handle(append(said)))
        async with asyncio.timeout(10):
            while not sending.done():
                await clock.advance(0.2)
                if hasattr(vad, "made"):
                    vad.made.look()
        assert np.array_equal(np.concatenate(frames)[: len(said)], said), "silence comes after it"
        await clock.advance(0.3)
        assert len(frames) > 40
        assert not frames[40].any()
