"""Settings change whole or not at all, and errors name the field as the client wrote it."""

import numpy as np
import pytest
from msgspec.structs import replace
from running import (
    F32,
    FRAME,
    LevelVad,
    all_free,
    append,
    audio_of,
    everything,
    noise,
    running,
    settled,
    silence,
    until,
)

from duplex.events import Failed, ResponseCreated, SessionUpdated
from duplex.session import Mode
from duplex.turns import TurnDetection
from duplex.wire.session_reader import read_update
from engine.api import BadParams
from engine.echo import EchoModel
from media.clock import VirtualClock

TURNS = replace(
    F32,
    turn_detection=TurnDetection(silence_duration_ms=200),
    input_clock="server",
    idle_timeout_s=300.0,
)


class Actor(EchoModel):
    """An echo with voices and a persona, that refuses to be rude."""

    def __init__(self, slots, delay):
        super().__init__(slots, delay)
        self.opened = []
        voices = {"voices": ("one", "two"), "default_voice": "one", "persona": True}
        self._spec = replace(self._spec, sampling=True, **voices)

    def check(self, params):
        if params.persona == "rude":
            raise BadParams("persona", "the model won't be rude")
        if params.voice == "two" and params.seed is not None:
            raise BadParams("voice", "voice two has no seeds")

    def prefill(self, row, params):
        self.opened.append((params.voice, params.persona))
        return iter(())


@pytest.fixture
async def talk():
    models = []

    def model(slots, delay):
        models.append(Actor(slots, delay))
        return models[-1]

    clock = VirtualClock()
    async with running(model=model, vad=LevelVad(), clock=clock, slots=1) as runtime:
        session = runtime.create_session("sess_1", TURNS, Mode.TURNS)
        yield session, models[0], clock


async def update(session, **fields):
    """What an update brings: settings, or an error."""
    await session.handle(read_update(fields, session.runtime.spec, "mine"))
    found = await until(session, (SessionUpdated, Failed))
    return found[-1]


async def test_the_models_objection_names_the_clients_field(talk):
    session, _, _ = talk
    error = (await update(session, instructions="rude")).error
    assert (error.code, error.param) == ("invalid_value", "session.instructions")
    nested = {"audio": {"output": {"voice": "two"}}, "extra_body": {"seed": 3}}
    error = (await update(session, **nested)).error
    assert (error.param, error.event_id) == ("session.audio.output.voice", "mine")
    assert session.settings == TURNS


async def test_a_refused_update_leaves_the_slot_as_it_was(talk):
    session, model, _ = talk
    await update(session, voice="two", instructions="kind")
    error = (await update(session, instructions="rude", voice="one")).error
    assert error.param == "session.instructions"
    assert (session.settings.voice, session.settings.persona) == ("two", "kind")
    assert session.opened
    assert model.opened == [("two", "kind")] * 2
    await session.handle(append(noise(2)))
    await settled(session)
    assert len(audio_of(await until(session, ResponseCreated))) == 0


async def test_silence_begins_no_conversation(talk):
    """Clients send their settings in several updates, and the server's clock doesn't wait."""
    session, model, clock = talk
    await update(session, instructions="kind")
    await clock.advance(1.0)
    await settled(session)
    assert session.fed > 5
    updated = await update(session, instructions="curt", voice="two")
    assert updated.settings.persona == "curt"
    assert model.opened == [(None, "kind"), ("two", "curt")]
    assert session.fed == 0
    await clock.advance(1.0)
    await settled(session)
    assert session.fed > 5, "the clock goes on"
    await session.close("client_close")
    await everything(session)
    await all_free(session.runtime)


async def test_speech_does(talk):
    session, _, _ = talk
    await update(session, voice="one")
    await session.handle(append(silence(2)))
    await update(session, voice="two")
    await session.handle(append(noise(2)))
    await settled(session)
    nested = {"audio": {"output": {"voice": "one"}}, "overlap_policy": "barge_in_on_speech"}
    error = (await update(session, **nested)).error
    assert error.param == "session.audio.output.voice"
    assert session.settings.overlap_policy == "listen_only", "all of it, or nothing"
    assert isinstance(await update(session, voice="two"), SessionUpdated), "it is that already"


async def test_the_rate_is_fixed_by_the_first_audio(talk):
    session, _, _ = talk
    await session.handle(append(silence(1)))
    for fields, path in (
        ({"sample_rate_hz": 16_000}, "session.sample_rate_hz"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8_000}}}},
            "session.audio.input.format.rate",
        ),
    ):
        error = (await update(session, **fields)).error
        assert (error.code, error.param) == ("invalid_value", path)


async def test_idle_time_has_the_servers_limit(talk):
    session, _, _ = talk
    assert (await update(session, idle_timeout_s=10)).settings.idle_timeout_s == 10
    for asked, shown in ((86_400, "86400"), (None, "null")):
        updated = await update(session, idle_timeout_s=asked)
        assert updated.settings.idle_timeout_s == 300
        (substitution,) = updated.substitutions
        assert (substitution.requested, substitution.in_force) == (shown, "300")
    assert (await update(session, idle_timeout_s=10)).substitutions == ()


async def test_what_is_asked_for_anew_is_not_substituted_any_more(talk):
    session, _, _ = talk
    asked = {"turn_detection": {"type": "semantic_vad"}, "transcription": {"model": "whisper-1"}}
    updated = await update(session, audio={"input": asked}, tracing="auto")
    assert [item.field for item in updated.substitutions] == [
        "session.audio.input.turn_detection.type",
        "session.audio.input.transcription",
        "session.tracing",
    ]
    asked = {"turn_detection": {"type": "server_vad"}, "transcription": None}
    updated = await update(session, audio={"input": asked})
    assert [item.field for item in updated.substitutions] == ["session.tracing"]


async def test_substitutions_are_bounded(talk):
    session, _, _ = talk
    for number in range(10):
        extra = {f"sparkle_{number}_{place}": 1 for place in range(20)}
        updated = await update(session, extra_body=extra)
    assert len(updated.substitutions) == 64
    assert updated.substitutions[-1].field == "session.extra_body.sparkle_9_19"


async def test_one_response_has_no_length():
    async with running() as runtime:
        session = runtime.create_session("sess_1", F32)
        updated = await update(session, max_output_tokens=5)
        assert updated.settings.max_output_tokens is None
        (substitution,) = updated.substitutions
        assert (substitution.field, substitution.in_force) == ("session.max_output_tokens", "inf")


async def test_an_utterance_has():
    async with running() as runtime:
        session = runtime.create_session("sess_1", replace(TURNS, turn_detection=None), Mode.TURNS)
        await update(session, max_output_tokens=3)
        for frame in np.concatenate([noise(10), silence(10), noise(2), silence(9)]).reshape(
            -1, FRAME
        ):
            await session.handle(append(frame))
            await settled(session)
        await session.close("client_close")
        done = [event for event in await everything(session) if hasattr(event, "frames")]
        assert [(one.status, one.reason, one.frames) for one in done] == [
            ("incomplete", "max_output_tokens", 3),
            ("incomplete", "max_output_tokens", 3),
        ]
