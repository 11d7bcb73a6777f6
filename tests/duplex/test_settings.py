import msgspec
import pytest
from msgspec import UNSET

from duplex.errors import SessionError
from duplex.settings import EncodedAudio, Settings, SettingsPatch
from duplex.turns import TurnDetection, TurnDetectionPatch
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
    alaw = Settings().patched(patch({"input_audio_format": "g711_alaw"}))
    assert (alaw.input_format, alaw.input_rate) == (AudioFormat.G711_ALAW, 8_000)
    assert alaw.patched(patch({"input_audio_format": "pcm16"})).input_rate == 24_000
    assert alaw.patched(patch({"input_audio_format": "g711_ulaw"})).input_rate == 8_000
    named = {"sample_rate_hz": 16_000, "input_audio_format": "g711_alaw"}
    assert Settings().patched(patch(named)).input_rate == 16_000
    assert Settings(input_rate=16_000).patched(patch({"input_audio_format": "pcm_f32le"})) == (
        Settings(input_rate=16_000, input_format=AudioFormat.PCM_F32LE)
    )


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
        "tool_choice": "required",
        "truncation": "disabled",
        "prompt": {"id": "pmpt_1"},
        "reasoning": {"effort": "low"},
        "include": ["item.input_audio_transcription.logprobs"],
        "speed": 1.2,
        "temperature": 0.8,
        "extra_body": {"auto_response": False, "sparkle": 1},
    }
    session["audio"]["input"]["turn_detection"]["create_response"] = False
    assert substituted(session).keys() == {
        "session.audio.input.turn_detection.create_response",
        "session.tool_choice",
        "session.truncation",
        "session.prompt",
        "session.reasoning",
        "session.include",
        "session.speed",
        "session.temperature",
        "session.extra_body.auto_response",
        "session.extra_body.sparkle",
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
        ({"audio": "loud"}, "invalid_type", "session.audio"),
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "many"}, "invalid_type", "session.max_output_tokens"),
        ({"tools": {}}, "invalid_type", "session.tools"),
        ({"model": 5}, "invalid_type", "session.model"),
        ({"overlap_barge_in_ms": -1}, "invalid_value", "session.overlap_barge_in_ms"),
        ({"overlap_short_ack_ms": 0.5}, "invalid_type", "session.overlap_short_ack_ms"),
        ({"playback_commit_policy": "all"}, "invalid_value", "session.playback_commit_policy"),
        ({"input_clock": "sundial"}, "invalid_value", "session.input_clock"),
        ({"audio": {"output": {"speed": 9}}}, "invalid_value", "session.audio.output.speed"),
        ({"audio": {"input": {"id": 3}}}, "unknown_parameter", "session.audio.input.id"),
        (
            {"turn_detection": {"type": "semantic_vad", "eagerness": "wild"}},
            "invalid_value",
            "session.turn_detection.eagerness",
        ),
        ({"voice": "../../etc/passwd"}, "invalid_value", "session.voice"),
        ({"voice": 7}, "invalid_type", "session.voice"),
        ({"tools": [{"type": "function"}]}, "unsupported_tools", "session.tools"),
        ({"modalities": ["smell"]}, "invalid_value", "session.modalities"),
        ({"modalities": []}, "invalid_value", "session.modalities"),
        ({"overlap_policy": "shout"}, "invalid_value", "session.overlap_policy"),
        ({"idle_timeout_s": -1}, "invalid_value", "session.idle_timeout_s"),
        ({"idle_timeout_s": "1"}, "invalid_type", "session.idle_timeout_s"),
        ({"extra_body": []}, "invalid_type", "session.extra_body"),
        (
            {"extra_body": {f"k{n:03}": n for n in range(65)}},
            "invalid_value",
            "session.extra_body.k064",
        ),
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
    assert read.turn_detection == TurnDetectionPatch(threshold=0.7, idle_timeout_ms=None)
    assert patch({"turn_detection": None}).turn_detection is None
    assert patch({}).turn_detection is UNSET


def test_turn_detection_is_merged_deeply():
    """A client that changes one thing of it must not switch the rest back, or off."""
    slow = TurnDetection(silence_duration_ms=900, threshold=0.3)
    settings = Settings(turn_detection=slow)
    changed = settings.patched(patch({"audio": {"input": {"turn_detection": {"threshold": 0.7}}}}))
    assert changed.turn_detection == TurnDetection(silence_duration_ms=900, threshold=0.7)
    assert settings.patched(patch({"voice": "NATM1"})).turn_detection == slow
    begun = Settings().patched(patch({"turn_detection": {"type": "server_vad"}}))
    assert begun.turn_detection == TurnDetection()


def test_a_format_is_merged_deeply():
    rate = patch({"audio": {"input": {"format": {"rate": 16_000}}}})
    assert (rate.input_format, rate.input_rate) == (UNSET, 16_000)


def test_what_changes_nothing_is_not_substituted():
    session = {
        "type": "realtime",
        "tool_choice": "auto",
        "truncation": "auto",
        "tools": [],
        "include": [],
        "tracing": None,
        "parallel_tool_calls": True,
        "audio": {"input": {"noise_reduction": None}, "output": {"speed": 1}},
        "max_output_tokens": "inf",
        "extra_body": {"auto_response": True, "force_listen_count": 3},
        "expires_at": 5,
    }
    assert substituted(session) == {}


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
        ("data:audio/wav" + ";a=b" * 9 + ";base64,AAAA", "invalid_value"),
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
