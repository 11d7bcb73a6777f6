from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex import commands, events
from duplex.conversation import Item
from duplex.errors import SessionError, resource_exhausted
from duplex.fence import Fence
from duplex.settings import Settings, Substitution
from duplex.wire.chat import PING, ChatWire, Control, Kind, message, read_query
from duplex.wire.frames import Binary
from engine.api import EngineSpec, OpenParams
from media.formats import AudioFormat
from media.ogg_opus import OggOpusDecoder, OggOpusEncoder

FRAME = 1_920
PLAIN = EngineSpec(
    model="plain",
    sample_rate=24_000,
    frame_size=FRAME,
    slots=1,
    startup_frames=0,
    max_in_flight=4,
)
RICH = EngineSpec(
    model="rich",
    sample_rate=24_000,
    frame_size=FRAME,
    slots=4,
    startup_frames=1,
    max_in_flight=4,
    voices=("NATF2", "NATM1"),
    default_voice="NATF2",
    persona=True,
    sampling=True,
)
READY = events.SessionUpdated(settings=Settings())


def audio(pcm, index=0):
    return events.OutputAudio(
        fence=Fence("s", response="r"), format=AudioFormat.PCM16, pcm=pcm, frame_index=index
    )


def ready(spec=PLAIN):
    wire = ChatWire(spec)
    assert wire.render(READY) == [b"\0"]
    return wire


def parse(wire, data):
    return wire.parse(bytes(data), binary=True)


def refused(wire, data, *, binary=True):
    with pytest.raises(SessionError) as caught:
        wire.parse(data, binary=binary)
    return caught.value


# --- what a client sends ----------------------------------------------------------------------


def test_audio_becomes_samples_of_the_sessions_clock():
    wire, encoder = ready(), OggOpusEncoder(24_000)
    for _ in range(3):
        command = parse(wire, message(Kind.AUDIO, encoder.push(np.zeros(FRAME, np.float32))))
        assert type(command) is commands.AppendAudio
        assert (command.format, command.rate) == (AudioFormat.PCM_F32LE, 24_000)
        assert len(command.audio) == 4 * FRAME
    assert wire.early_samples == 0


def test_pages_without_samples_ask_for_nothing():
    wire, encoder = ready(), OggOpusEncoder(24_000)
    pages = encoder.push(np.zeros(FRAME, np.float32))
    assert parse(wire, message(Kind.AUDIO, pages[:60])) is None
    assert len(parse(wire, message(Kind.AUDIO, pages[60:])).audio) == 4 * FRAME


def test_audio_before_the_handshake_is_dropped_and_counted_but_its_headers_are_kept():
    wire, encoder = ChatWire(PLAIN), OggOpusEncoder(24_000)
    for _ in range(3):
        pages = encoder.push(np.zeros(FRAME, np.float32))
        assert parse(wire, message(Kind.AUDIO, pages)) is None
    assert wire.early_samples == 3 * FRAME
    wire.render(READY)
    pages = encoder.push(np.zeros(FRAME, np.float32))
    assert len(parse(wire, message(Kind.AUDIO, pages)).audio) == 4 * FRAME
    assert wire.early_samples == 3 * FRAME


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (message(Kind.TEXT, "héllo".encode()), commands.AppendText(text="héllo")),
        (message(Kind.CONTROL, bytes([Control.START])), None),
        (message(Kind.CONTROL, bytes([Control.END_TURN])), commands.CommitInput(may_be_empty=True)),
        (message(Kind.CONTROL, bytes([Control.PAUSE])), None),
        (message(Kind.CONTROL, bytes([Control.RESTART])), commands.ClearOutput()),
        (message(Kind.CONTROL, b"\x09"), None),
        (message(Kind.METADATA, b'{"a": [1]}'), None),
        (message(Kind.HANDSHAKE), None),
        (message(Kind.HANDSHAKE, bytes(8)), None),
        (message(Kind.ERROR, b"mine"), None),
        (message(Kind.PING), commands.Heartbeat()),
        (b"\x07", None),
        (b"\xffanything", None),
    ],
)
def test_every_other_kind(data, command):
    assert parse(ready(), data) == command
    assert parse(ChatWire(PLAIN), data) is None


@pytest.mark.parametrize(
    ("data", "binary", "code"),
    [
        (b"", True, "invalid_message"),
        (b'{"type": "open"}', False, "invalid_message"),
        (message(Kind.TEXT, b"\xff\xfe"), True, "invalid_message"),
        (message(Kind.CONTROL), True, "invalid_message"),
        (message(Kind.METADATA, b"{"), True, "invalid_json"),
        (message(Kind.METADATA, b'"\xff"'), True, "invalid_json"),
    ],
)
def test_what_is_malformed_is_an_error_that_the_session_survives(data, binary, code):
    wire = ready()
    error = refused(wire, data, binary=binary)
    assert (error.code, error.fatal) == (code, False)
    assert parse(wire, message(Kind.PING)) == commands.Heartbeat()


@pytest.mark.parametrize("wire", [ready(), ChatWire(PLAIN)])
def test_what_is_no_ogg_ends_the_session(wire):
    error = refused(wire, message(Kind.AUDIO, b"RIFF" + bytes(100)))
    assert (error.code, error.fatal) == ("bad_audio", True)


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_any_message_is_a_command_nothing_or_an_error(data, binary, is_ready):
    wire = ready() if is_ready else ChatWire(PLAIN)
    try:
        command = wire.parse(data, binary=binary)
    except SessionError:
        return
    assert command is None or isinstance(command, commands.Command)


# --- what a client is sent --------------------------------------------------------------------


def test_each_frame_is_a_message_of_its_own_that_decodes_at_once():
    wire, decoder = ready(), OggOpusDecoder()
    for index in range(5):
        (sent,) = wire.render(audio(np.zeros(FRAME, np.float32), index))
        assert type(sent) is Binary
        assert sent[0] == Kind.AUDIO
        assert len(decoder.push(sent[1:])) == FRAME
    assert wire.render(events.SessionClosed(reason="client_close")) == []


def test_what_fills_no_packet_leaves_at_the_end():
    wire, decoder = ready(), OggOpusDecoder()
    (first,) = wire.render(audio(np.zeros(FRAME + 100, np.float32)))
    (last,) = wire.render(events.SessionClosed(reason="client_close"))
    assert len(decoder.push(first[1:])) + len(decoder.push(last[1:])) == FRAME + 960


def test_a_model_of_another_rate_is_heard_at_24_khz():
    wire, decoder = ready(EngineSpec(**{**_fields(PLAIN), "sample_rate": 16_000})), OggOpusDecoder()
    sent = [wire.render(audio(np.zeros(1_280, np.float32))) for _ in range(10)]
    sent.append(wire.render(events.SessionClosed(reason="client_close")))
    assert sum(len(decoder.push(m[1:])) for messages in sent for m in messages) == 10 * FRAME


def _fields(spec):
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_text_errors_and_pings():
    wire, fence = ready(), Fence("s", response="r")
    assert wire.render(events.OutputText(fence=fence, text=" né")) == [b"\x02 n\xc3\xa9"]
    (sent,) = wire.render(events.Failed(error=resource_exhausted(2)))
    assert sent[:1] == b"\x05"
    assert "2 conversation slots" in sent[1:].decode()
    assert PING == b"\x06"


def test_what_the_protocol_has_no_words_for_is_not_said():
    item = Item(id="i", role="assistant", parts=[])
    common = {"item": item, "previous_item_id": None}
    for event in (
        events.SessionCreated(settings=Settings()),
        events.ResponseCreated(response_id="r", conversation_id="c", **common),
        events.ResponseDone(
            response_id="r", conversation_id="c", status="completed", frames=1, **common
        ),
        events.ItemAdded(**common),
        events.InputCommitted(item_id="i", previous_item_id=None),
        events.OutputCleared(response_id="r"),
        events.HeartbeatAcknowledged(),
        events.OverlapDecided(policy="listen_only", action="listen", reason="x"),
        events.SessionExpired(idle_timeout_s=1),
        events.SessionClosed(reason="disconnected"),
    ):
        assert ready().render(event) == []


# --- the query --------------------------------------------------------------------------------


def opened(query, spec=RICH):
    """What the engine is asked for."""
    return Settings().patched(read_query(query, spec).patch).open_params()


def test_every_parameter():
    query = {
        "text_prompt": "You are kind.",
        "voice_prompt": "NATM1.pt",
        "text_temperature": "0.7",
        "text_topk": "25",
        "audio_temperature": "0.8",
        "audio_topk": "250",
        "seed": "42",
    }
    assert opened(query) == OpenParams(
        persona="You are kind.",
        voice="NATM1",
        text_temperature=0.7,
        text_top_k=25,
        audio_temperature=0.8,
        audio_top_k=250,
        seed=42,
    )


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"text_prompt": "", "voice_prompt": "", "seed": "", "text_topk": ""},
        {"worker_addr": "x", "pad_mult": "0", "repetition_penalty": "1.0", "text_seed": "1"},
        {"seed": "-1"},
    ],
)
def test_what_is_empty_or_not_known_here_is_ignored(query):
    assert opened(query) == OpenParams()


def test_a_model_that_takes_none_of_it_says_so():
    query = {"text_prompt": "hi", "voice_prompt": "NATF2", "seed": "1", "text_topk": "5"}
    command = read_query(query, PLAIN)
    assert {item.field for item in command.substitutions} == set(query)
    assert type(command.substitutions[0]) is Substitution
    assert opened(query, PLAIN) == OpenParams()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_temperature", "warm"),
        ("text_temperature", "-0.1"),
        ("text_temperature", "2.01"),
        ("audio_temperature", str(nan)),
        ("audio_temperature", str(inf)),
        ("text_topk", "2.5"),
        ("text_topk", "0"),
        ("audio_topk", "many"),
        ("audio_topk", "9" * 5_000),
        ("seed", "-2"),
        ("seed", str(2**63)),
        ("text_prompt", "x" * 20_001),
        ("voice_prompt", "NATF3"),
        ("voice_prompt", "../../etc/passwd"),
        ("voice_prompt", "../voices/NATF2.pt"),
        ("voice_prompt", "/NATF2"),
        ("voice_prompt", "NATF2.pt.pt"),
    ],
)
def test_bad_values_are_refused_by_name(name, value):
    with pytest.raises(SessionError) as caught:
        read_query({name: value}, RICH)
    assert caught.value.param == name
    assert name in caught.value.message or "NATF2, NATM1" in caught.value.message


@given(
    st.dictionaries(
        st.sampled_from(["seed", "text_topk", "audio_temperature", "voice_prompt"]), st.text()
    )
)
def test_any_query_is_settings_or_an_error(query):
    try:
        read_query(query, RICH)
    except SessionError as error:
        assert error.param in query
