"""The event tables of the realtime protocol: every client event with its success and its error,
every server event with its place in the order, and all of it in the types of the `openai` package.

Over the wire and the session, without sockets, on echo slots: messages in, messages out.
"""

import asyncio
import base64
import json
import typing

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.beta.realtime import RealtimeServerEvent as BetaServerEvent
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from running import FRAME, LevelVad, everything, noise, running, settled, silence

from duplex.errors import SessionError
from duplex.events import RateLimit, SessionExpired
from duplex.session import Mode
from duplex.settings import Settings
from duplex.turns import TurnDetection
from duplex.wire.messages import ClientMessage
from duplex.wire.realtime import RealtimeWire
from media.clock import VirtualClock

DETECTION = TurnDetection(silence_duration_ms=200, prefix_padding_ms=0)
TURNS = Settings(playback_commit_policy="commit_all_on_done", overlap_policy="barge_in_on_speech")
LIMIT = RateLimit(name="requests", limit=100, remaining=99, reset_s=0.02)
EXTENSIONS = frozenset(
    ("session.closed", "session.expired", "session.heartbeat_ack", "overlap.decision")
    + ("turn.event", "playback.acknowledged")
)


def variants(union):
    members = typing.get_args(typing.get_args(union)[0]) or typing.get_args(union)
    return {
        name: TypeAdapter(member)
        for member in members
        for name in typing.get_args(member.model_fields["type"].annotation)
    }


KNOWN = {"ga": variants(RealtimeServerEvent), "beta": variants(BetaServerEvent)}


class Talk:
    """A client: sends messages, and reads what comes, checked against OpenAI's types."""

    def __init__(self, session, wire, dialect):
        self.session, self.wire, self.dialect = session, wire, dialect

    async def send(self, kind, **fields):
        """The server messages that one client message brings, but for deltas of audio."""
        data = json.dumps({"type": kind, **fields})
        try:
            command = self.wire.parse(data)
        except SessionError as error:
            self.session.fail(error)
        else:
            await self.session.handle(command)
        await settled(self.session)
        return await self.read()

    async def say(self, sound):
        found = []
        for frame in sound.reshape(-1, FRAME):
            pcm = (frame * 32767).astype("<i2").tobytes()
            found += await self.send(
                "input_audio_buffer.append", audio=base64.b64encode(pcm).decode()
            )
        return found

    async def read(self):
        found = []
        for _ in range(len(self.session.outbox)):
            event = await self.session.outbox.get()
            if event is not None:
                found += [json.loads(message) for message in self.wire.render(event)]
        for message in found:
            self.check(message)
        return found

    def check(self, message):
        kind = message["type"]
        if kind in EXTENSIONS:
            return
        if self.dialect == "beta":
            session = message.get("session")
            if session is not None:
                session["model"] = "gpt-realtime"  # its type allows OpenAI's own names only
            if kind.startswith(("output_audio_buffer", "conversation.item.retrieved")):
                return  # its types name them, but not in this union
        KNOWN[self.dialect][kind].validate_python(message)


@pytest.fixture(params=["turns", "duplex", "beta"])
async def talk(request):
    async with running(vad=LevelVad(), delay=12) as runtime:
        duplex = request.param == "duplex"
        dialect = "beta" if request.param == "beta" else "ga"
        session = runtime.create_session(
            "sess_1", Settings() if duplex else TURNS, Mode.DUPLEX if duplex else Mode.TURNS
        )
        session.rate_limits = lambda: (LIMIT,)
        capabilities = runtime.capabilities if duplex else None
        made = Talk(session, RealtimeWire("sess_1", runtime.spec, capabilities, dialect), dialect)
        session.start()
        yield made


def kinds(messages):
    return [message["type"] for message in messages if not message["type"].endswith(".delta")]


def error_of(messages):
    (message,) = messages
    assert message["type"] == "error"
    return message["error"]


TEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0").decode()
CREATED = {
    "ga": ["conversation.item.added", "conversation.item.done"],
    "beta": ["conversation.item.created"],
}
COMMITTED = {name: ["input_audio_buffer.committed", *made] for name, made in CREATED.items()}

# Of each client event: what it brings first thing, and what a wrong one brings. None: depends on
# what went before; see the tests below.
TABLE = {
    "session.update": (
        {"session": {"type": "realtime", "instructions": "Be kind."}},
        ["session.updated"],
        {"session": {"audio": {"output": {"format": {"type": "audio/mp3"}}}}},
        ("unsupported_audio_format", "session.audio.output.format.type"),
    ),
    "session.create": (
        {"session": {}},
        ["session.updated"],
        {"session": {"tools": [{"type": "function", "name": "f"}]}},
        ("unsupported_tools", "session.tools"),
    ),
    "session.heartbeat": (
        {},
        ["session.heartbeat_ack"],
        {"event_id": 5},
        ("invalid_value", "event_id"),
    ),
    "session.event_ack": (
        {"server_event_seq": 1},
        [],
        {"server_event_seq": "one"},
        ("invalid_value", "server_event_seq"),
    ),
    "session.resume": (
        None,
        None,
        {"session_id": "sess_9", "resume_token": "x"},
        ("unsupported_session_resume", None),
    ),
    "session.close": (None, None, {"event_id": []}, ("invalid_value", "event_id")),
    "input_audio_buffer.append": (
        {"audio": base64.b64encode(bytes(3_840)).decode()},
        [],
        {"audio": base64.b64encode(bytes(3)).decode()},
        ("bad_audio", "audio"),
    ),
    "input_audio_buffer.commit": (
        None,
        None,
        {"final": "yes"},
        ("invalid_value", "final"),
    ),
    "input_audio_buffer.clear": (
        {},
        ["input_audio_buffer.cleared"],
        {"event_id": 1},
        ("invalid_value", "event_id"),
    ),
    "input.cancel": (
        {},
        ["input_audio_buffer.cleared"],
        {"event_id": 1},
        ("invalid_value", "event_id"),
    ),
    "input.text.append": (None, None, {"text": "hi"}, ("unsupported_modality", "text")),
    "response.create": (
        None,
        None,
        {"response": {"conversation": "none"}},
        ("invalid_value", "response.conversation"),
    ),
    "response.cancel": (None, None, {}, ("response_cancel_not_active", None)),
    "output_audio_buffer.clear": (
        None,
        None,
        {},
        ("response_cancel_not_active", None),
    ),
    "conversation.item.create": (
        {"item": TEXT},
        None,
        {"item": TEXT | {"role": "robot"}},
        ("invalid_value", "item.role"),
    ),
    "conversation.item.delete": (None, None, {"item_id": "x"}, ("item_not_found", "item_id")),
    "conversation.item.retrieve": (None, None, {"item_id": "x"}, ("item_not_found", "item_id")),
    "conversation.item.truncate": (
        None,
        None,
        {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
        ("item_not_found", "item_id"),
    ),
    "barge_in": ({}, ["overlap.decision"], {"response_id": 1}, ("invalid_value", "response_id")),
    "playback.ack": (None, None, {"played_ms": 1}, ("playback_item_mismatch", None)),
    "turn.signal": (
        {"event": "user_started"},
        ["turn.event"],
        {"event": ""},
        ("invalid_value", "event"),
    ),
}


def test_the_table_has_every_client_event():
    kinds = {message.__struct_config__.tag for message in ClientMessage.__subclasses__()}
    assert kinds == set(TABLE)


@pytest.mark.parametrize("kind", TABLE)
async def test_a_wrong_event_brings_an_error_that_can_be_matched(talk, kind):
    _, _, wrong, (code, param) = TABLE[kind]
    await talk.read()
    error = error_of(await talk.send(kind, **{"event_id": "mine"} | wrong))
    assert (error["code"], error.get("param")) == (code, param)
    assert error["type"] == "invalid_request_error"
    if isinstance(wrong.get("event_id", "mine"), str):
        assert error["event_id"] == "mine"
    again = await talk.send("session.heartbeat")
    assert kinds(again) == ["session.heartbeat_ack"], "the session lives on"


@pytest.mark.parametrize("kind", [kind for kind, row in TABLE.items() if row[0] is not None])
async def test_a_right_event_is_answered(talk, kind):
    right, answer, _, _ = TABLE[kind]
    await talk.read()
    found = kinds(await talk.send(kind, **right))
    if answer is None:
        answer = CREATED[talk.dialect]
    unspoken = talk.session.mode is Mode.TURNS and answer == ["overlap.decision"]
    assert found == ([] if unspoken else answer)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"audio": "@"}, "bad_audio", "audio"),
        ({"audio": "", "format": "mp3"}, "unsupported_audio_format", "format"),
        ({"audio": "AAAA", "format": "pcm_f32le"}, "bad_audio", "audio"),
        ({"audio": "", "sample_rate_hz": 16_000}, "bad_audio", "sample_rate_hz"),
        ({"audio": "", "video_frames": [JPEG]}, "unsupported_modality", "video_frames"),
        ({"audio": "", "video_frames": ["AAAA"]}, "invalid_value", "video_frames[0]"),
    ],
)
async def test_bad_audio(talk, fields, code, param):
    await talk.say(silence(1))
    await talk.read()
    error = error_of(await talk.send("input_audio_buffer.append", **fields))
    assert (error["code"], error["param"]) == (code, param)


async def test_commits(talk):
    await talk.read()
    if talk.session.mode is Mode.TURNS:
        error = error_of(await talk.send("input_audio_buffer.commit"))
        assert error["code"] == "input_audio_buffer_commit_empty"
        await talk.say(silence(2))
    found = await talk.send("input_audio_buffer.commit", final=True, response_create=False)
    assert kinds(found) == COMMITTED[talk.dialect]
    item = found[1]["item"]
    assert item["id"] == found[0]["item_id"]
    assert item["content"] == [{"type": "input_audio", "transcript": None}]


async def test_items(talk):
    await talk.read()
    await talk.send("conversation.item.create", item=TEXT | {"id": "one"})
    made = await talk.send(
        "conversation.item.create", item=TEXT | {"id": "two"}, previous_item_id="root"
    )
    assert made[0]["previous_item_id"] is None
    third = await talk.send("conversation.item.create", item=TEXT, previous_item_id="two")
    assert third[0]["previous_item_id"] == "two"
    (retrieved,) = await talk.send("conversation.item.retrieve", item_id="one")
    assert retrieved["type"] == "conversation.item.retrieved"
    assert retrieved["item"]["content"] == [{"type": "input_text", "text": "hi"}]
    (deleted,) = await talk.send("conversation.item.delete", item_id="one")
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", "one")
    for wrong, code, param in (
        ({"item": TEXT | {"id": "two"}}, "invalid_value", "item.id"),
        ({"item": TEXT, "previous_item_id": "one"}, "item_not_found", "previous_item_id"),
        ({"item": TEXT | {"content": []}}, "invalid_value", "item.content"),
        ({"item": {"type": "mcp_call"}}, "invalid_value", "item.type"),
        ({"item": {"type": "function_call_output"}}, "invalid_value", "item.call_id"),
        (
            {"item": TEXT | {"content": [{"type": "input_audio", "audio": "AAAA"}]}},
            "invalid_value",
            "item.content[0].audio",
        ),
    ):
        error = error_of(await talk.send("conversation.item.create", **wrong))
        assert (error["code"], error["param"]) == (code, param)


async def test_tool_results_are_carried(talk):
    await talk.read()
    for item in (
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "42"},
    ):
        found = await talk.send("conversation.item.create", item=item)
        assert kinds(found) == CREATED[talk.dialect]
        assert item.items() <= found[0]["item"].items()


BEGUN = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "rate_limits.updated",
]
ENDED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
BETA = {
    "conversation.item.added": "conversation.item.created",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}


def in_dialect(names, dialect):
    if dialect == "ga":
        return names
    return [BETA.get(name, name) for name in names if name != "conversation.item.done"]


async def test_the_order_of_a_turn(talk):
    """The user speaks, and 12 frames later what was said comes back as the answer."""
    session = talk.session
    session.apply(replace(session.settings, turn_detection=DETECTION))
    assert kinds(await talk.read()) == ["session.created"]
    found = await talk.say(np.concatenate([silence(1), noise(3), silence(30)]))
    user = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    if session.mode is Mode.DUPLEX:
        assert kinds(found) == user + BEGUN
        found = await talk.send("session.close")
        assert kinds(found) == [*ENDED, "session.closed"]
    else:
        assert kinds(found) == in_dialect(user + BEGUN + ENDED, talk.dialect)
    done = found[-1 if session.mode is Mode.TURNS else -2]["response"]
    assert (done["status"], done["status_details"]) == ("completed", {"type": "completed"})
    usage = done["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens"] >= usage["output_tokens"] > 0


async def test_deltas_say_whose_they_are(talk):
    found = await talk.say(noise(14))
    (created,) = [message for message in found if message["type"] == "response.created"]
    deltas = [message for message in found if message["type"].endswith("audio.delta")]
    assert len(deltas) == 2
    for count, delta in enumerate(deltas, 1):
        assert delta["response_id"] == created["response"]["id"]
        assert delta["item_id"] == f"item_{delta['response_id']}"
        assert (delta["output_index"], delta["content_index"]) == (0, 0)
        metadata = delta["metadata"]
        assert metadata["audio_duration_ms"] == 80 * count
        assert metadata["server_event_seq"] == delta["server_event_seq"]
    numbers = [message["server_event_seq"] for message in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    ids = [message["event_id"] for message in found]
    assert len(set(ids)) == len(ids)


async def test_an_agent_interrupted_by_its_user(talk):
    session = talk.session
    session.apply(
        replace(
            session.settings,
            turn_detection=DETECTION,
            overlap_policy="barge_in_on_speech",
            overlap_short_ack_ms=80,
            overlap_barge_in_ms=160,
        )
    )
    await talk.read()
    found = await talk.say(noise(20))
    names = kinds(found)
    if session.mode is Mode.DUPLEX:
        (decided,) = [one for one in found if one["type"] == "overlap.decision"]
        assert (decided["action"], decided["reason"]) == ("barge_in", "user_speech")
        assert decided["audio_ms"] % 32 == 0
        late = [
            message["metadata"]["epoch"]
            for message in found[found.index(decided) :]
            if message["type"].endswith("audio.delta")
        ]
        assert set(late) == {1}
        return
    assert names == in_dialect(["input_audio_buffer.speech_started", *BEGUN, *ENDED], talk.dialect)
    response = found[-1]["response"]
    assert response["status"] == "cancelled"
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}


async def test_an_agent_interrupted_by_its_client(talk):
    (begun,) = [m for m in await talk.say(noise(14)) if m["type"] == "response.created"]
    response = begun["response"]["id"]
    error = error_of(await talk.send("response.cancel", response_id="resp_old", event_id="late"))
    assert (error["code"], error["param"]) == ("response_cancel_not_active", "response_id")
    assert error["event_id"] == "late"
    found = await talk.send("response.cancel", response_id=response)
    if talk.session.mode is Mode.DUPLEX:
        assert kinds(found) == ["overlap.decision"]
        again = await talk.send("response.cancel")
        assert kinds(again) == ["overlap.decision"], "the stream goes on"
        return
    assert kinds(found) == in_dialect(ENDED, talk.dialect)
    details = found[-1]["response"]["status_details"]
    assert details == {"type": "cancelled", "reason": "client_cancelled"}
    error = error_of(await talk.send("response.cancel", event_id="twice"))
    assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "twice")


async def test_clearing_the_output(talk):
    await talk.say(noise(14))
    response = talk.session.fence.response
    for _ in range(2):  # also when it is over: a player may still have some
        found = await talk.send("output_audio_buffer.clear")
        assert found[-1]["type"] == "output_audio_buffer.cleared"
        assert found[-1]["response_id"] == response


async def test_truncation(talk):
    await talk.say(noise(14))
    item = f"item_{talk.session.fence.response}"
    for asked, kept in ((100_000, 160), (80, 80), (0, 0)):
        (truncated,) = await talk.send(
            "conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=asked
        )
        assert truncated["type"] == "conversation.item.truncated"
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item, kept)
    for wrong, param in (({"audio_end_ms": -1}, "audio_end_ms"), ({"content_index": 1},) * 2):
        fields = {"item_id": item, "content_index": 0, "audio_end_ms": 1} | wrong
        error = error_of(await talk.send("conversation.item.truncate", **fields))
        assert error["code"] == "invalid_value"
        assert error["param"] == (param if isinstance(param, str) else "content_index")


async def test_a_request_for_a_response(talk):
    await talk.read()
    notes = {"client_event_id": "event_1"}
    found = await talk.send(
        "response.create",
        event_id="mine",
        response={"metadata": notes, "instructions": "Greet them.", "max_output_tokens": 3},
    )
    if talk.session.mode is Mode.DUPLEX:
        (decided,) = found
        assert (decided["action"], decided["reason"]) == ("listen", "model_decides")
        return
    assert kinds(found) == in_dialect(BEGUN, talk.dialect)
    response = found[0]["response"]
    assert (response["metadata"], response["max_output_tokens"]) == (notes, 3)
    assert [item["field"] for item in response["substitutions"]] == ["response.instructions"]
    error = error_of(await talk.send("response.create", event_id="twice"))
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "twice"
    found = await talk.say(noise(20))
    ends = [message for message in found if message["type"] == "response.done"]
    assert len(ends) == 1
    ended = ends[0]["response"]
    assert (ended["status"], ended["metadata"]) == ("incomplete", notes)
    assert ended["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert ended["usage"]["output_token_details"] == {"audio_tokens": 3, "text_tokens": 0}


async def test_a_response_in_text(talk):
    session = talk.session
    session.apply(replace(session.settings, output_text_only=session.mode is Mode.DUPLEX))
    found = await talk.send("response.create", response={"output_modalities": ["text"]})
    found += await talk.say(noise(14))
    found += await talk.send("session.close")
    names = kinds(found)
    text = "response.text.done" if talk.dialect == "beta" else "response.output_text.done"
    assert text in names
    assert not [name for name in names if "audio.done" in name]


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"input": []}, "invalid_value", "response.input"),
        ({"tools": [{"type": "function"}]}, "unsupported_tools", "response.tools"),
        ({"metadata": {"a": 1}}, "invalid_value", "response.metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "response.metadata"),
        ({"output_modalities": ["smell"]}, "invalid_value", "response.output_modalities"),
        ({"max_output_tokens": 0}, "invalid_value", "response.max_output_tokens"),
        ({"mood": 1}, "unknown_parameter", "response.mood"),
        ({"audio": {"output": {"pitch": 1}}}, "unknown_parameter", "response.audio.output.pitch"),
    ],
)
async def test_a_response_that_cannot_be_had(talk, response, code, param):
    await talk.read()
    error = error_of(await talk.send("response.create", response=response))
    assert (error["code"], error["param"]) == (code, param)
    assert talk.session.responses.current is None


async def test_playback(talk):
    await talk.say(noise(16))
    (acked,) = await talk.send("playback.ack", played_ms=1_000, committed_ms=160)
    assert acked["type"] == "playback.acknowledged"
    assert (acked["played_ms"], acked["committed_ms"]) == (320, 160)
    assert acked["item_id"] == f"item_{acked['response_id']}"
    error = error_of(await talk.send("playback.ack", played_ms=1, item_id="item_other"))
    assert (error["code"], error["param"]) == ("playback_item_mismatch", "item_id")


async def test_the_end_of_a_session(talk):
    await talk.read()
    await talk.say(noise(14))
    names = kinds(await talk.send("session.close"))
    ended = in_dialect(ENDED, talk.dialect)
    assert names[: len(ended)] == ended
    assert names[len(ended) :] == (["session.closed"] if talk.session.mode is Mode.DUPLEX else [])


async def test_an_idle_session(talk):
    (message,) = [json.loads(m) for m in talk.wire.render(SessionExpired(idle_timeout_s=5.0))]
    if talk.session.mode is Mode.DUPLEX:
        assert (message["type"], message["reason"]) == ("session.expired", "idle_timeout")
    else:
        assert message["error"]["code"] == "session_expired"


async def test_speech_that_does_not_come():
    clock = VirtualClock()
    detection = replace(DETECTION, idle_timeout_ms=800)
    async with running(vad=LevelVad(), clock=clock) as runtime:
        settings = replace(TURNS, turn_detection=detection)
        session = runtime.create_session("sess_1", settings, Mode.TURNS)
        talk = Talk(session, RealtimeWire("sess_1", runtime.spec, None), "ga")
        found = await talk.say(silence(14))
        assert kinds(found)[1:] == [
            "input_audio_buffer.timeout_triggered",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
        ]
        assert found[1]["item_id"] == found[2]["item_id"]
        await session.close("disconnected")


async def test_a_failed_session_says_why():
    async with running() as runtime:
        session = runtime.create_session("sess_1", TURNS, Mode.TURNS)
        talk = Talk(session, RealtimeWire("sess_1", runtime.spec, None), "ga")
        await talk.say(noise(2))
        session.abort(SessionError("internal_error", "x", type="server_error"), "internal_error")
        found = [
            json.loads(message)
            for event in await everything(session)
            for message in talk.wire.render(event)
        ]
        response = found[-1]["response"]
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "internal_error"


SOUND = base64.b64encode((noise(1) * 32767).astype("<i2").tobytes()).decode()
QUIET = base64.b64encode(bytes(FRAME * 2)).decode()
values = (
    st.none()
    | st.booleans()
    | st.integers(-5, 500)
    | st.text(max_size=4)
    | st.sampled_from([SOUND, QUIET, "root", "one", {"type": "server_vad"}, TEXT, ["text"], {}])
)
fields = st.dictionaries(
    st.sampled_from(
        ["audio", "item", "item_id", "content_index", "audio_end_ms", "response", "response_id"]
        + ["session", "event_id", "played_ms", "committed_ms", "truncate", "text", "event"]
        + ["format", "sample_rate_hz", "video_frames", "previous_item_id", "final"]
    ),
    values,
    max_size=4,
)
sessions = st.fixed_dictionaries(
    {
        "session": st.dictionaries(
            st.sampled_from(
                ["turn_detection", "output_modalities", "max_output_tokens", "input_clock", "voice"]
                + ["overlap_policy", "playback_commit_policy", "tools", "tracing", "audio"]
            ),
            values | st.just("ack_only") | st.just("barge_in_on_speech"),
            max_size=3,
        )
    }
)
messages = (
    st.tuples(st.sampled_from([*TABLE, "session.fly"]), fields)
    | st.tuples(st.just("session.update"), sessions)
    | st.tuples(st.just("input_audio_buffer.append"), st.just({"audio": SOUND}))
    | st.tuples(st.just("input_audio_buffer.append"), st.just({"audio": QUIET}))
)


@pytest.mark.parametrize("mode", Mode)
@hypothesis.settings(max_examples=40)
@hypothesis.given(script=st.lists(messages, max_size=30))
def test_whatever_a_client_sends(mode, script):
    """Every answer has a type that OpenAI's clients know, and numbers go up by one."""

    async def run():
        async with running(vad=LevelVad(), delay=3) as runtime:
            session = runtime.create_session("sess_1", TURNS, mode)
            capabilities = runtime.capabilities if mode is Mode.DUPLEX else None
            talk = Talk(session, RealtimeWire("sess_1", runtime.spec, capabilities), "ga")
            session.start()
            found = await talk.read()
            for kind, more in script:
                found += await talk.send(kind, **more)
            await session.close("disconnected")
            return found + await talk.read()

    found = asyncio.run(run())
    assert found[0]["type"] == "session.created"
    assert [message["server_event_seq"] for message in found] == list(range(1, len(found) + 1))
    begun = [m["response"]["id"] for m in found if m["type"] == "response.created"]
    ended = [m["response"]["id"] for m in found if m["type"] == "response.done"]
    assert begun == ended
    assert len(set(begun)) == len(begun)
