"""The official `openai` Python SDK, unmodified, against a running server.

Judged with openai 3.57. Quirks: its types allow what they don't know, so a wrong shape does not
raise; `check` therefore validates every event strictly against the type that the SDK names for
it. The sync client reads in the caller's thread. `client.beta.realtime` sends the header
`OpenAI-Beta: realtime=v1`, which is what makes the server speak the beta dialect.
"""

import asyncio
import base64
import typing

import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.beta.realtime import RealtimeServerEvent as BetaServerEvent
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

# The sync SDK connects in a way that websockets 17 calls legacy.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

FRAME = 1_920
SILENCE = np.zeros(FRAME, np.int16).tobytes()


def voice(frames, seed=0):
    sound = np.random.default_rng(seed).uniform(-0.3, 0.3, FRAME * frames)
    return (sound * 32767).astype(np.int16).tobytes()


def b64(data):
    return base64.b64encode(data).decode()


def variants(union):
    """The event types of the SDK's union, by their `type`."""
    members = typing.get_args(typing.get_args(union)[0]) or typing.get_args(union)
    found = {}
    for member in members:
        for name in typing.get_args(member.model_fields["type"].annotation):
            found[name] = TypeAdapter(member)
    return found


GA, BETA = variants(RealtimeServerEvent), variants(BetaServerEvent)


def check(event, known=GA):
    """The event is of a type that the SDK knows, and has that type's shape."""
    fields = event.model_dump(exclude_unset=True)
    if known is BETA and "session" in fields:
        fields["session"]["model"] = "gpt-realtime"  # its type allows OpenAI's own names only
    known[event.type].validate_python(fields)
    return event


def clients(server):
    base = server.address + "/v1"
    sockets = base.replace("http", "ws", 1)  # the beta client would take wss whatever the base
    return (
        OpenAI(api_key="unused-key", base_url=base, websocket_base_url=sockets),
        AsyncOpenAI(api_key="unused-key", base_url=base, websocket_base_url=sockets),
    )


@pytest.fixture
def echo(start_process):
    with start_process("echo", "--max-sessions", "4") as server:
        yield server


async def until(connection, kind, found=None):
    async with asyncio.timeout(20):
        while True:
            event = check(await connection.recv())
            if found is not None:
                found.append(event)
            if event.type == kind:
                return event


async def test_a_conversation(echo):
    _, client = clients(echo)
    async with client, client.realtime.connect(model="gpt-realtime") as connection:
        created = check(await connection.recv())
        assert created.type == "session.created"
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "Be kind.",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24_000},
                        "turn_detection": {"type": "semantic_vad"},
                        "transcription": {"model": "whisper-1"},
                    },
                    "output": {"voice": "marin", "format": {"type": "audio/pcm", "rate": 24_000}},
                },
            }
        )
        updated = await until(connection, "session.updated")
        assert updated.session.audio.input.turn_detection.type == "server_vad"
        substituted = {item["field"] for item in updated.session.model_extra["substitutions"]}
        assert "session.audio.input.transcription" in substituted
        sound = voice(6)
        for start in range(0, len(sound), 1_000):
            await connection.input_audio_buffer.append(audio=b64(sound[start : start + 1_000]))
        found = []
        # Nothing more is sent: the server's clock feeds the silence that ends the utterance.
        done = await until(connection, "response.done", found)
        kinds = [event.type for event in found]
        assert kinds[:4] == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
        ]
        assert kinds[-6:] == [
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        assert done.response.status == "completed"
        audio = b"".join(
            base64.b64decode(event.delta)
            for event in found
            if event.type == "response.output_audio.delta"
        )
        assert audio.startswith(sound)
        item_id = done.response.output[0].id
        await connection.conversation.item.truncate(
            item_id=item_id, content_index=0, audio_end_ms=10_000_000
        )
        truncated = await until(connection, "conversation.item.truncated")
        assert truncated.audio_end_ms == len(audio) // 48
        await connection.conversation.item.retrieve(item_id=item_id)
        retrieved = await until(connection, "conversation.item.retrieved")
        assert retrieved.item.id == item_id


async def test_a_cancelled_response_and_the_errors(echo):
    _, client = clients(echo)
    async with client, client.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        await until(connection, "session.updated")
        await connection.input_audio_buffer.commit(event_id="empty")
        error = (await until(connection, "error")).error
        assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "empty")
        await connection.response.cancel(event_id="nothing")
        error = (await until(connection, "error")).error
        assert (error.code, error.event_id) == ("response_cancel_not_active", "nothing")
        await connection.input_audio_buffer.append(audio=b64(voice(5)))
        created = await until(connection, "response.created")
        await connection.response.cancel(response_id=created.response.id)
        done = await until(connection, "response.done")
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "client_cancelled"
        await connection.input_audio_buffer.append(audio=b64(SILENCE * 12))
        await connection.input_audio_buffer.commit()
        found = []
        await until(connection, "conversation.item.done", found)
        kinds = [event.type for event in found]
        assert kinds[-3:] == [
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
        ]
        await connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hello"}],
            }
        )
        made = await until(connection, "conversation.item.done")
        assert made.item.content[0].text == "hello"
        await connection.conversation.item.delete(item_id=made.item.id)
        assert (await until(connection, "conversation.item.deleted")).item_id == made.item.id
        await connection.response.create()
        await until(connection, "response.created")
        await connection.response.create(event_id="twice")
        error = (await until(connection, "error")).error
        assert error.code == "conversation_already_has_active_response"
        await connection.session.update(
            event_id="tools",
            session={
                "type": "realtime",
                "tools": [{"type": "function", "name": "f", "parameters": {}}],
            },
        )
        error = (await until(connection, "error")).error
        assert (error.event_id, error.param) == ("tools", "session.tools")


async def test_full_duplex_through_the_sdk(echo):
    _, client = clients(echo)
    async with (
        client,
        client.realtime.connect(model="echo", extra_query={"duplex": "1"}) as connection,
    ):
        await until(connection, "session.created")
        sound = voice(20)
        for start in range(0, len(sound), FRAME * 2):
            await connection.input_audio_buffer.append(audio=b64(sound[start : start + FRAME * 2]))
        heard = b""
        while len(heard) < len(sound):
            event = await until(connection, "response.output_audio.delta")
            heard += base64.b64decode(event.delta)
        assert heard == sound
        await connection.send({"type": "session.close"})
        kinds = set()
        while "response.done" not in kinds:
            kinds.add(check(await connection.recv()).type)


async def test_a_new_connection_after_the_server_was_full(start_process):
    with start_process("echo", "--max-sessions", "1") as server:
        _, client = clients(server)
        async with client:
            async with client.realtime.connect(model="m") as first:
                await first.input_audio_buffer.append(audio=b64(voice(1)))
                await until(first, "response.output_audio.delta")
                async with client.realtime.connect(model="m") as second:
                    await second.input_audio_buffer.append(audio=b64(voice(1)))
                    error = await until(second, "error")
                    assert error.error.code == "resource_exhausted"
            async with asyncio.timeout(20), client.realtime.connect(model="m") as third:
                await third.input_audio_buffer.append(audio=b64(voice(1)))
                await until(third, "response.output_audio.delta")


def test_the_sync_client(echo):
    client, _ = clients(echo)
    with client, client.realtime.connect(model="gpt-realtime") as connection:
        assert check(connection.recv()).type == "session.created"
        sound = voice(3)
        connection.input_audio_buffer.append(audio=b64(sound))
        audio = b""
        for event in connection:
            check(event)
            if event.type == "response.output_audio.delta":
                audio += base64.b64decode(event.delta)
            if event.type == "response.done":
                break
        assert audio.startswith(sound)


async def test_the_beta_dialect(echo):
    _, client = clients(echo)
    async with client, client.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection:
        await connection.session.update(
            session={
                "modalities": ["audio", "text"],
                "voice": "alloy",
                "input_audio_format": "pcm16",
                "output_audio_format": "pcm16",
                "turn_detection": None,
                "temperature": 0.8,
            }
        )
        sound = voice(3)
        await connection.input_audio_buffer.append(audio=b64(sound))
        kinds, audio = [], b""
        async with asyncio.timeout(20):
            async for event in connection:
                check(event, BETA)
                kinds.append(event.type)
                if event.type == "response.audio.delta":
                    audio += base64.b64decode(event.delta)
                if event.type == "response.done":
                    break
        assert audio.startswith(sound)
        assert "conversation.item.created" in kinds
        assert "response.audio_transcript.done" in kinds
        assert not {
            kind for kind in kinds if "output_audio" in kind or kind == "conversation.item.done"
        }
