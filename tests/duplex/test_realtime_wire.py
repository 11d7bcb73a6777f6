import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from duplex import commands, events
from duplex.conversation import Item, Part
from duplex.errors import SessionError
from duplex.fence import Fence
from duplex.settings import Capabilities, ResponseSettings, Settings, Substitution
from duplex.wire.close_codes import close_code
from duplex.wire.realtime import RealtimeWire, dialect_of
from engine.api import EngineSpec, Timings
from media.formats import AudioFormat, decode

SPEC = EngineSpec(
    model="talker",
    sample_rate=24_000,
    frame_size=1_920,
    slots=2,
    startup_frames=1,
    max_in_flight=25,
    voices=("NATF2", "NATM1"),
    default_voice="NATM1",
    persona=True,
    text=True,
    sampling=True,
)
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 and so on").decode()
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
FENCE = Fence("sess_1", epoch=3, response="resp_1")
ITEM = Item(id="item_resp_1", role="assistant", parts=[Part(type="output_audio", text="hello")])
CREATED = events.ResponseCreated(
    response_id="resp_1",
    item=ITEM,
    previous_item_id=None,
    conversation_id="conv_1",
    settings=ResponseSettings(),
)
DONE = events.ResponseDone(
    response_id="resp_1",
    status="completed",
    item=ITEM,
    previous_item_id=None,
    conversation_id="conv_1",
    settings=ResponseSettings(),
    frames=2,
    words=1,
    heard=3,
)


def wire(dialect="ga", spec=SPEC):
    return RealtimeWire("sess_1", spec, Capabilities.of(spec), dialect)


def parse(message, **kwargs):
    return wire(**kwargs).parse(json.dumps(message).encode())


def refused(message, **kwargs):
    with pytest.raises(SessionError) as caught:
        parse(message, **kwargs)
    return caught.value


def render(event, on=None):
    return [json.loads(data) for data in (on or wire()).render(event)]


class TestParse:
    def test_append(self):
        audio = bytes(range(16))
        command = parse(
            {
                "type": "input_audio_buffer.append",
                "event_id": "e1",
                "audio": base64.b64encode(audio).decode(),
                "format": "pcm_f32le",
                "sample_rate_hz": 16_000,
                "duration_ms": 80,
                "audio_end_ms": 80,
                "is_speech": True,
            }
        )
        assert command == commands.AppendAudio(
            event_id="e1", audio=audio, format=AudioFormat.PCM_F32LE, rate=16_000
        )

    @pytest.mark.parametrize("field", ["format", "input_audio_format"])
    def test_append_with_unknown_format(self, field):
        error = refused(
            {"type": "input_audio_buffer.append", "audio": "", field: "mp3", "event_id": "e"}
        )
        assert (error.code, error.param, error.event_id) == ("unsupported_audio_format", field, "e")

    @pytest.mark.parametrize(
        ("frames", "code", "param"),
        [
            ([JPEG], "unsupported_modality", "video_frames"),
            ([JPEG, PNG], "unsupported_modality", "video_frames"),
            ([JPEG, "@@@@"], "invalid_value", "video_frames[1]"),
            ([base64.b64encode(b"GIF89a").decode()], "invalid_value", "video_frames[0]"),
            ([PNG] * 3, "invalid_value", "video_frames"),
            ([PNG + "A" * (6 << 20)], "invalid_value", "video_frames[0]"),
            (["ÿ"], "invalid_value", "video_frames[0]"),
        ],
    )
    def test_video_for_a_model_without(self, frames, code, param):
        error = refused({"type": "input_audio_buffer.append", "audio": "", "video_frames": frames})
        assert (error.code, error.param) == (code, param)

    def test_video_for_a_model_that_takes_it(self):
        spec = structs.replace(SPEC, video=True)
        message = {"type": "input_audio_buffer.append", "audio": "", "video_frames": [JPEG, PNG]}
        command = parse(message, spec=spec)
        assert command.video == (base64.b64decode(JPEG), base64.b64decode(PNG))
        refusal = refused(message | {"video_frames": [JPEG, "x"]}, spec=spec)
        assert (refusal.code, refusal.param) == ("invalid_value", "video_frames[1]")

    @pytest.mark.parametrize(
        ("message", "command"),
        [
            ({"type": "session.close"}, commands.CloseSession()),
            ({"type": "session.heartbeat"}, commands.Heartbeat()),
            (
                {"type": "session.event_ack", "server_event_seq": 7},
                commands.AckEvent(server_event_seq=7),
            ),
            (
                {"type": "input_audio_buffer.commit", "final": True, "response_create": False},
                commands.CommitInput(may_be_empty=True),
            ),
            ({"type": "input_audio_buffer.clear"}, commands.ClearInput()),
            ({"type": "response.cancel"}, commands.BargeIn(required=True)),
            (
                {"type": "response.cancel", "response_id": "resp_9"},
                commands.BargeIn(response_id="resp_9", required=True),
            ),
            ({"type": "barge_in"}, commands.BargeIn()),
        ],
    )
    def test_commands(self, message, command):
        assert parse(message) == command

    @pytest.mark.parametrize(
        ("data", "code", "param"),
        [
            (b"nonsense", "invalid_json", None),
            (b"\xff\xfe", "invalid_json", None),
            (b"[]", "invalid_value", None),
            (b"0 1", "invalid_json", None),
            (b"[" * 100_000, "invalid_json", None),
            (b'{"type":"session.update","session":' + b'{"a":' * 50_000, "invalid_json", None),
            (b"{}", "invalid_value", "type"),
            (b'{"type": 5}', "invalid_value", "type"),
            (b'{"type": "session.fly"}', "unknown_event", "type"),
            (b'{"type": "input_audio_buffer.append"}', "invalid_value", "audio"),
            (b'{"type": "input_audio_buffer.append", "audio": 5}', "bad_audio", "audio"),
            (b'{"type": "input_audio_buffer.append", "audio": "@"}', "bad_audio", "audio"),
            (
                b'{"type": "input_audio_buffer.append", "audio": "", "sample_rate_hz": "x"}',
                "invalid_value",
                "sample_rate_hz",
            ),
            (b'{"type": "session.update", "session": 5}', "invalid_value", "session"),
            (b'{"type": "session.update"}', "invalid_value", "session"),
            (b'{"type": "session.event_ack"}', "invalid_value", "server_event_seq"),
        ],
    )
    def test_refusals(self, data, code, param):
        with pytest.raises(SessionError) as caught:
            wire().parse(data)
        assert (caught.value.code, caught.value.param) == (code, param)
        assert not caught.value.fatal

    def test_a_refusal_names_the_clients_event(self):
        assert refused({"type": "session.fly", "event_id": "mine"}).event_id == "mine"
        assert refused({"type": "session.update", "event_id": "mine"}).event_id == "mine"
        assert refused({"type": "session.fly", "event_id": 5}).event_id is None

    @pytest.mark.parametrize(
        "message",
        [
            {"type": "x" * 10**6},
            {"type": "session.heartbeat", "event_id": "x" * 10**6},
            {"type": "session.fly", "event_id": "x" * 10**6},
            {"type": "session.update", "session": {"x" * 10**6: 1}},
            {"type": "session.update", "session": {"voice": {"x" * 10**6: 1}}},
        ],
    )
    def test_a_refusal_gives_back_little_of_what_was_sent(self, message):
        error = refused(message)
        assert len(error.message) <= 1000
        assert len(error.param or "") <= 200
        assert error.event_id is None

    @given(st.binary(max_size=64) | st.text(max_size=64))
    def test_garbage_never_raises_anything_else(self, data):
        with pytest.raises(SessionError):
            wire().parse(data)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["audio", "input", "output", "format", "type", "rate", "voice", "tools"]
                        + [
                            "extra_body",
                            "seed",
                            "turn_detection",
                            "modalities",
                            "id",
                            "instructions",
                        ]
                        + ["idle_timeout_s", "sample_rate_hz", "model", "input_audio_format"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        )
    )
    def test_any_session_is_read_or_refused(self, session):
        try:
            parse({"type": "session.update", "session": session})
        except SessionError as error:
            assert error.code


class TestRender:
    def test_audio(self):
        pcm = np.linspace(-0.5, 0.5, 1_920, dtype=np.float32)
        event = events.OutputAudio(
            fence=FENCE,
            format=AudioFormat.PCM_F32LE,
            pcm=pcm,
            frame_index=0,
            timings=Timings(step_s=0.0125, rows=2),
        )
        on = wire()
        (first,), (second,) = render(event, on), render(event, on)
        assert first["type"] == "response.output_audio.delta"
        assert (first["response_id"], first["item_id"]) == ("resp_1", "item_resp_1")
        assert (first["format"], first["sample_rate_hz"]) == ("pcm_f32le", 24_000)
        assert np.array_equal(decode(AudioFormat.PCM_F32LE, base64.b64decode(first["delta"])), pcm)
        assert first["metadata"] == {
            "audio_duration_ms": 80.0,
            "server_event_seq": 1,
            "frame_index": 0,
            "epoch": 3,
            "stage_metrics": {"step_ms": 12.5, "rows": 2},
        }
        assert second["metadata"]["audio_duration_ms"] == 160.0
        assert (first["server_event_seq"], second["server_event_seq"]) == (1, 2)
        assert first["event_id"] != second["event_id"]

    @pytest.mark.parametrize("audio_format", [AudioFormat.G711_ULAW, AudioFormat.G711_ALAW])
    def test_g711_is_8_khz(self, audio_format):
        pcm = np.sin(np.arange(1_920) * 0.05).astype(np.float32) / 2
        event = events.OutputAudio(fence=FENCE, format=audio_format, pcm=pcm, frame_index=0)
        on, samples = wire(), 0
        for _ in range(10):
            (message,) = render(event, on)
            assert message["sample_rate_hz"] == 8_000
            samples += len(base64.b64decode(message["delta"]))
        assert 6_400 - 16 <= samples <= 6_400

    def test_dialects_name_the_same_events(self):
        event = events.OutputText(fence=FENCE, text="hi")
        ga, beta = render(event)[0], render(event, wire("beta"))[0]
        assert ga["type"] == "response.output_audio_transcript.delta"
        assert beta["type"] == "response.audio_transcript.delta"
        assert ga["delta"] == beta["delta"] == "hi"

    def test_a_response(self):
        on = wire()
        started = render(CREATED, on)
        done = render(DONE, on)
        assert [message["type"] for message in started + done] == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        assert [message["server_event_seq"] for message in started + done] == list(range(1, 11))
        response = done[-1]["response"]
        assert (response["id"], response["status"]) == ("resp_1", "completed")
        assert response["output"][0]["id"] == "item_resp_1"
        assert response["output"][0]["content"][0]["transcript"] == "hello"

    def test_session_created_is_honest(self):
        event = events.SessionCreated(
            settings=Settings(persona="be kind", voice="NATF2"),
            substitutions=(Substitution("session.tracing", "auto", None, "off"),),
        )
        session = render(event)[0]["session"]
        capabilities = session["capabilities"]
        assert capabilities["implementation_level"] == "model_native_duplex"
        assert capabilities["chunk_period_ms"] == 80
        assert capabilities["max_sessions"] == 2
        assert capabilities["input_modes"] == ["append_audio_chunk"]
        assert capabilities["optional_input_modalities"] == []
        assert session["audio"]["output"]["voice"] == "NATF2"
        assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
        assert session["instructions"] == "be kind"
        assert session["substitutions"][0]["field"] == "session.tracing"
        flat = render(event, wire("beta"))[0]["session"]
        assert (flat["voice"], flat["input_audio_format"]) == ("NATF2", "pcm16")

    def test_error(self):
        error = SessionError("bad_audio", "odd", param="audio", event_id="e7")
        message = render(events.Failed(error=error))[0]
        assert message["error"] == {
            "type": "invalid_request_error",
            "code": "bad_audio",
            "message": "odd",
            "param": "audio",
            "event_id": "e7",
        }

    def test_no_field_is_null_but_the_place_of_a_first_item(self):
        """Some clients drop events with nulls silently, but need to know what is first."""
        on = wire()
        for event in (
            events.InputCommitted(item_id="item_1", previous_item_id=None),
            events.InputCleared(),
            events.HeartbeatAcknowledged(),
            events.SessionClosed(reason="client_close"),
            events.SessionExpired(idle_timeout_s=1.0),
            events.OverlapDecided(policy="listen_only", action="barge_in", reason="x"),
            events.Failed(error=SessionError("x", "y")),
            CREATED,
            DONE,
        ):
            for message in render(event, on):
                nulls = {name for name, value in message.items() if value is None}
                placed = "item_id" in message or message["type"].startswith("conversation.item.")
                assert nulls <= ({"previous_item_id"} if placed else set())


def test_dialect_of():
    assert dialect_of(None, None) == "ga"
    assert dialect_of(None, "realtime=v1") == "beta"
    assert dialect_of("ga", "realtime=v1") == "ga"
    assert dialect_of("beta", None) == "beta"
    with pytest.raises(SessionError) as caught:
        dialect_of("alpha", None)
    assert caught.value.param == "dialect"


def test_close_codes():
    assert close_code("client_close") == 1000
    assert close_code("resource_exhausted") == 1013
    assert close_code("server_shutdown") == 1012
    assert close_code("internal_error") == 1011
