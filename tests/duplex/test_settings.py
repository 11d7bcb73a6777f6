import msgspec
import pytest
from msgspec import UNSET

from duplex.errors import SessionError
from duplex.settings import EncodedAudio, Settings, SettingsPatch
from duplex.turns import TurnDetection
from duplex.wire.fields import MAX_REF_AUDIO
from duplex.wire.session_reader import read_session
from engine.api import EngineSpec
from media.formats import AudioFormat

PLAIN = EngineSpec(
    model="plain",
    sample_rate=24_000,
    frame_size=1_920,
    slots=1,
    startup_frames=0,
    max_in_flight=4,
)
RICH = EngineSpec(
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
    text=True,
)


def patch(session, spec=RICH):
    return read_session(session, spec)[0]


def substituted(session, spec=RICH):
    return {item.field: item for item in read_session(session, spec)[1]}


def refusal(session, spec=RICH):
    with pytest.raises(SessionError) as caught:
        read_session(session, spec)
    return caught.value.code, caught.value.param


def test_flat_and_nested_say_the_same():
    flat = {
        "model": "rich",
        "instructions": "be kind",
        "voice": "NATM1",
        "modalities": ["audio", "text"],
        "input_audio_format": "pcm_f32le",
        "output_audio_format": "g711_ulaw",
        "sample_rate_hz": 16_000,
    }
    nested = {
        "type": "realtime",
        "model": "rich",
        "instructions": "be kind",
        "output_modalities": ["audio"],
        "audio": {
            "input": {"format": {"type": "pcm_f32le", "rate": 16_000}},
            "output": {"format": {"type": "audio/pcmu", "rate": 8_000}, "voice": "NATM1"},
        },
    }
    expected = SettingsPatch(
        persona="be kind",
        voice="NATM1",
        output_text_only=False,
        input_format=AudioFormat.PCM_F32LE,
        output_format=AudioFormat.G711_ULAW,
        input_rate=16_000,
    )
    assert patch(flat) == patch(nested) == expected


def test_only_what_is_named_changes():
    changed = patch({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 24_000}}}})
    assert changed.output_format is UNSET
    settings = Settings(voice="NATM1", seed=3).patched(changed)
    assert (settings.voice, settings.seed, settings.input_rate) == ("NATM1", 3, 24_000)


def test_g711_input_is_8_khz_unless_said_otherwise():
    assert patch({"input_audio_format": "g711_alaw"}).input_rate == 8_000
    named = {"sample_rate_hz": 16_000, "input_audio_format": "g711_alaw"}
    assert patch(named).input_rate == 16_000


def test_voice_file_names_mean_their_voices():
    assert patch({"voice": "NATF2.pt"}).voice == "NATF2"


def test_voices_and_models_of_others_are_substituted():
    assert substituted({"voice": "alloy"})["session.voice"].in_force == "NATF2"
    assert substituted({"model": "gpt-realtime"})["session.model"].in_force == "rich"
    assert substituted({"voice": "NATF2"}, PLAIN)["session.voice"].in_force is None
    assert substituted({"instructions": "x"}, PLAIN)["session.instructions"].in_force is None
    assert substituted({"extra_body": {"seed": 3}}, PLAIN).keys() == {"session.extra_body.seed"}
    assert patch({"extra_body": {"seed": 3}}).seed == 3


def test_what_is_off_here_is_substituted():
    session = {
        "audio": {
            "input": {
                "turn_detection": {"type": "semantic_vad"},
                "transcription": {"model": "whisper-1"},
                "noise_reduction": {"type": "near_field"},
            }
        },
        "tracing": "auto",
    }
    assert substituted(session).keys() == {
        "session.audio.input.turn_detection.type",
        "session.audio.input.transcription",
        "session.audio.input.noise_reduction",
        "session.tracing",
    }


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"input_audio_format": "mp3"}, "unsupported_audio_format", "session.input_audio_format"),
        ({"input_audio_format": "wav"}, "unsupported_audio_format", "session.input_audio_format"),
        ({"output_audio_format": 5}, "invalid_type", "session.output_audio_format"),
        ({"sample_rate_hz": 96_000}, "unsupported_audio_format", "session.sample_rate_hz"),
        ({"sample_rate_hz": "24k"}, "invalid_type", "session.sample_rate_hz"),
        ({"sample_rate_hz": True}, "invalid_type", "session.sample_rate_hz"),
        (
            {"audio": {"input": {"format": {"type": "audio/opus"}}}},
            "unsupported_audio_format",
            "session.audio.input.format.type",
        ),
        (
            {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
            "unsupported_audio_format",
            "session.audio.output.format.rate",
        ),
        (
            {"audio": {"output": {"sample_rate_hz": 44_100}}},
            "unsupported_audio_format",
            "session.audio.output.sample_rate_hz",
        ),
        ({"audio": "loud"}, "invalid_value", "session.audio"),
        ({"voice": "../../etc/passwd"}, "invalid_value", "session.voice"),
        ({"voice": 7}, "invalid_type", "session.voice"),
        ({"tools": [{"type": "function"}]}, "unsupported_tools", "session.tools"),
        ({"modalities": ["smell"]}, "invalid_value", "session.modalities"),
        ({"modalities": []}, "invalid_value", "session.modalities"),
        ({"overlap_policy": "shout"}, "invalid_value", "session.overlap_policy"),
        ({"idle_timeout_s": -1}, "invalid_value", "session.idle_timeout_s"),
        ({"idle_timeout_s": "1"}, "invalid_type", "session.idle_timeout_s"),
        ({"extra_body": []}, "invalid_type", "session.extra_body"),
        ({"extra_body": {"seed": -1}}, "invalid_value", "session.extra_body.seed"),
        (
            {"extra_body": {"audio_temperature": 9}},
            "invalid_value",
            "session.extra_body.audio_temperature",
        ),
        ({"turn_detection": "vad"}, "invalid_type", "session.turn_detection"),
        (
            {"turn_detection": {"type": "psychic"}},
            "unsupported_turn_detection",
            "session.turn_detection.type",
        ),
        (
            {"turn_detection": {"threshold": 2}},
            "invalid_value",
            "session.turn_detection.threshold",
        ),
        (
            {"turn_detection": {"mood": 2}},
            "unknown_parameter",
            "session.turn_detection.mood",
        ),
        ({"colour": "red"}, "unknown_parameter", "session.colour"),
        ({"modalities": [[]]}, "invalid_value", "session.modalities"),
        ({"audio": {"input": {"gain": 3}}}, "unknown_parameter", "session.audio.input.gain"),
        ({"instructions": "x" * 20_001}, "invalid_value", "session.instructions"),
    ],
)
def test_refusals_name_the_field(session, code, param):
    assert refusal(session) == (code, param)


def test_turn_detection():
    read = patch(
        {"turn_detection": {"type": "server_vad", "threshold": 0.7, "idle_timeout_ms": None}}
    )
    assert read.turn_detection == TurnDetection(threshold=0.7)
    assert patch({"turn_detection": None}).turn_detection is None
    assert patch({}).turn_detection is UNSET


CLONING = msgspec.structs.replace(RICH, voice_audio=True)
URL = "data:audio/wav;base64,AAAA"


def test_a_recording_and_a_voice_replace_each_other():
    recording = patch({"ref_audio": URL}, CLONING)
    assert recording.voice_audio == EncodedAudio("session.ref_audio", "AAAA")
    assert recording.voice is None
    named = patch({"voice": "NATM1"}, CLONING)
    assert (named.voice, named.voice_audio) == ("NATM1", None)
    assert patch({"ref_audio": None}, CLONING).voice_audio is None
    assert patch({"ref_audio": URL, "voice": "alloy"}, CLONING).voice is None
    for both in ({"voice": "NATM1", "ref_audio": URL}, {"ref_audio": URL, "voice": "NATM1"}):
        assert refusal(both, CLONING)[0] == "invalid_value"


def test_a_model_without_recordings_says_so_and_not_at_length():
    assert patch({"ref_audio": URL}).voice_audio is UNSET
    item = substituted({"ref_audio": URL + "A" * 1_000})["session.ref_audio"]
    assert item.requested == "data:audio/wav;base64,…"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (3, "invalid_type"),
        ("", "invalid_value"),
        ("AAAA", "invalid_value"),
        ("https://example.com/voice.wav", "invalid_value"),
        ("file:///etc/passwd", "invalid_value"),
        ("data:text/plain;base64,AAAA", "invalid_value"),
        ("data:audio/wav,AAAA", "invalid_value"),
        ("data:audio/wav;base64," + "A" * (MAX_REF_AUDIO // 3 * 4 + 8), "invalid_value"),
    ],
)
@pytest.mark.parametrize("spec", [RICH, CLONING])
def test_bad_recordings_are_refused(value, code, spec):
    assert refusal({"ref_audio": value}, spec) == (code, "session.ref_audio")


def test_the_type_of_a_recording_may_have_parameters():
    for kind in ("audio/ogg;codecs=opus", "audio/x-wav", "audio/vnd.wave"):
        read = patch({"ref_audio": f"data:{kind};base64,AAAA"}, CLONING)
        assert read.voice_audio.base64 == "AAAA"
