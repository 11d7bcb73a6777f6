import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex import commands, events
from duplex.errors import SessionError, resource_exhausted
from duplex.fence import Fence
from duplex.settings import EncodedAudio, Settings, Substitution
from duplex.wire.frames import Binary
from duplex.wire.raw import RawWire
from engine.api import EngineSpec, OpenParams
from media.formats import AudioFormat

SPEC = EngineSpec(
    model="rich",
    sample_rate=24_000,
    frame_size=1_920,
    slots=4,
    startup_frames=1,
    max_in_flight=4,
    voices=("NATF2", "NATM1"),
    default_voice="NATF2",
    persona=True,
    sampling=True,
    voice_audio=True,
)
FENCE = Fence("s", response="r")


def text(wire, **fields):
    return wire.parse(json.dumps(fields).encode(), binary=False)


def opened(**fields):
    wire = RawWire("sess", SPEC)
    command = text(wire, type="open", **fields)
    assert type(command) is commands.UpdateSession
    return wire, Settings().patched(command.patch)


def refused(wire, data, *, binary=False):
    with pytest.raises(SessionError) as caught:
        wire.parse(data, binary=binary)
    return caught.value.code, caught.value.param


def said(wire, event):
    (sent,) = wire.render(event)
    assert type(sent) is bytes
    return json.loads(sent)


def test_open_sets_float32_both_ways_and_what_the_client_wants():
    _, settings = opened(
        persona="Be kind.", voice="NATM1", sample_rate=16_000, seed=1, audio_top_k=5
    )
    assert settings.open_params() == OpenParams(
        persona="Be kind.", voice="NATM1", seed=1, audio_top_k=5
    )
    assert settings.input_format == settings.output_format == AudioFormat.PCM_F32LE
    assert settings.input_rate == 16_000
    assert settings.input_clock == "client"


def test_open_needs_nothing():
    wire, settings = opened()
    assert settings.input_rate == 24_000
    assert wire.parse(b"\0" * 8, binary=True) == commands.AppendAudio(audio=b"\0" * 8)
    assert text(wire, type="close") == commands.CloseSession()


def test_a_voice_may_be_a_recording():
    wire = RawWire("sess", SPEC)
    command = text(wire, type="open", ref_audio="data:audio/wav;base64,AAAA")
    assert command.patch.voice_audio == EncodedAudio("ref_audio", "AAAA")


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b"\xff", "invalid_json", None),
        (b'{"type": "\xff"}', "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b"{}", "unknown_event", "type"),
        (b'{"type": 3}', "unknown_event", "type"),
        (b'{"type": "session.update"}', "unknown_event", "type"),
        (b'{"type": "open", "colour": "red"}', "unknown_parameter", "colour"),
        (b'{"type": "open", "sample_rate": 7999}', "unsupported_audio_format", "sample_rate"),
        (b'{"type": "open", "sample_rate": 48001}', "unsupported_audio_format", "sample_rate"),
        (b'{"type": "open", "sample_rate": "24000"}', "invalid_type", "sample_rate"),
        (b'{"type": "open", "voice": "../NATF2"}', "invalid_value", "voice"),
        (b'{"type": "open", "persona": 3}', "invalid_type", "persona"),
        (b'{"type": "open", "seed": -1}', "invalid_value", "seed"),
        (b'{"type": "open", "ref_audio": "file:///x"}', "invalid_value", "ref_audio"),
    ],
)
def test_refusals_name_the_field_and_leave_the_session_unopened(data, code, param):
    wire = RawWire("sess", SPEC)
    assert refused(wire, data) == (code, param)
    assert refused(wire, b"\0" * 4, binary=True) == ("not_open", None)
    assert type(text(wire, type="open")) is commands.UpdateSession


def test_open_comes_once_unless_it_failed():
    wire, _ = opened()
    assert refused(wire, b'{"type": "open"}') == ("already_open", "type")
    wire.render(events.Failed(error=SessionError("invalid_value", "no such voice", param="voice")))
    assert refused(wire, b"\0" * 4, binary=True) == ("not_open", None)
    assert type(text(wire, type="open")) is commands.UpdateSession
    wire.render(events.SessionUpdated(settings=Settings()))
    wire.render(events.Failed(error=SessionError("bad_audio", "odd")))
    assert refused(wire, b'{"type": "open"}') == ("already_open", "type")


def test_ready_says_what_frames_follow():
    wire, settings = opened()
    ready = {"type": "ready", "session_id": "sess", "sample_rate": 24_000, "frame_size": 1_920}
    assert said(wire, events.SessionUpdated(settings=settings)) == ready
    lack = Substitution("persona", "hi", None, "no")
    updated = events.SessionUpdated(settings=settings, substitutions=(lack,))
    assert said(wire, updated)["substitutions"][0]["field"] == "persona"


def test_frames_are_float32_as_they_are():
    pcm = np.random.default_rng(0).normal(0, 1, 1_920).astype(np.float32)
    event = events.OutputAudio(fence=FENCE, format=AudioFormat.PCM_F32LE, pcm=pcm, frame_index=0)
    (sent,) = RawWire("sess", SPEC).render(event)
    assert type(sent) is Binary
    assert sent == pcm.tobytes()


def test_text_and_errors():
    wire, _ = opened()
    assert said(wire, events.OutputText(fence=FENCE, text=" né")) == {"type": "text", "text": " né"}
    error = SessionError("invalid_value", "No.", param="voice")
    assert said(wire, events.Failed(error=error)) == {
        "type": "error",
        "code": "invalid_value",
        "message": "No.",
        "param": "voice",
    }


def test_done_comes_last_unless_the_session_failed():
    wire, _ = opened()
    wire.render(events.Failed(error=SessionError("bad_audio", "odd")))
    assert said(wire, events.SessionClosed(reason="client_close")) == {"type": "done"}
    wire, _ = opened()
    assert said(wire, events.Failed(error=resource_exhausted(1)))["code"] == "resource_exhausted"
    assert wire.render(events.SessionClosed(reason="resource_exhausted")) == []
    wire, _ = opened()
    assert said(wire, events.SessionExpired(idle_timeout_s=3))["code"] == "session_expired"
    assert wire.render(events.SessionClosed(reason="idle_timeout")) == []


def test_what_the_protocol_has_no_words_for_is_not_said():
    wire, settings = opened()
    assert wire.render(events.SessionCreated(settings=settings)) == []
    assert wire.render(events.InputCleared()) == []


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
names = st.sampled_from(["type", "persona", "voice", "sample_rate", "seed", "ref_audio", "x"])


@given(st.lists(st.dictionaries(names, values | st.sampled_from(["open", "close"]))), st.binary())
def test_any_message_is_a_command_or_an_error(messages, data):
    wire = RawWire("sess", SPEC)
    for binary in (False, True):
        try:
            assert isinstance(wire.parse(data, binary=binary), commands.Command)
        except SessionError as error:
            assert error.message
    for fields in messages:
        try:
            assert isinstance(text(wire, **fields), commands.Command)
        except SessionError as error:
            assert error.message
