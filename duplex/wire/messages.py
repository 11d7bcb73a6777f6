"""The messages of the realtime protocol that clients send, as types: JSON in, checked structs out.

Source: OpenAI's Realtime API reference (client events) and the duplex extensions. Unknown fields
are ignored, as clients grow; wrong types are refused by field name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_EVENT_ID = 512
"""Characters of a client's name for its event, as OpenAI's reference has it."""


class ClientMessage(msgspec.Struct, kw_only=True, gc=False, tag_field="type"):
    """Base of all client messages."""

    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID)] | None = None


class SessionUpdate(ClientMessage, kw_only=True, tag="session.update"):
    """`session` is flat or nested; see duplex.wire.session_reader."""

    session: dict[str, object]


class SessionCreate(ClientMessage, kw_only=True, tag="session.create"):
    """The first event on /v1/duplex; means what session.update means."""

    session: dict[str, object] = {}


class SessionResume(ClientMessage, kw_only=True, tag="session.resume"):
    """Takes over a session that lost its socket."""

    session_id: str
    resume_token: str
    last_received_server_event_seq: Annotated[int, msgspec.Meta(ge=0)] = 0


class SessionClose(ClientMessage, kw_only=True, tag="session.close"):
    """Ends the session."""


class SessionHeartbeat(ClientMessage, kw_only=True, tag="session.heartbeat"):
    """Keeps the session from expiring."""


class SessionEventAck(ClientMessage, kw_only=True, gc=False, tag="session.event_ack"):
    """All events up to this number have arrived."""

    server_event_seq: int


class InputAudioAppend(ClientMessage, kw_only=True, gc=False, tag="input_audio_buffer.append"):
    """`audio` is base64 in JSON. `format` and its older name say the same."""

    audio: bytes
    format: str | None = None
    input_audio_format: str | None = None
    sample_rate_hz: int | None = None
    video_frames: list[str] | None = None


class InputAudioCommit(ClientMessage, kw_only=True, tag="input_audio_buffer.commit"):
    """The end of an utterance."""

    final: bool = False
    response_create: bool | None = None


class InputAudioClear(ClientMessage, kw_only=True, tag="input_audio_buffer.clear"):
    """Drops audio that isn't used yet."""


class ResponseCreate(ClientMessage, kw_only=True, tag="response.create"):
    """Asks for a response: see duplex.wire.response_reader."""

    response: dict[str, object] | None = None


class ResponseCancel(ClientMessage, kw_only=True, tag="response.cancel"):
    """Silences the response in progress."""

    response_id: str | None = None


class OutputAudioClear(ClientMessage, kw_only=True, tag="output_audio_buffer.clear"):
    """Drops what is queued for playback."""


class ConversationItemCreate(ClientMessage, kw_only=True, tag="conversation.item.create"):
    """Adds an item: see duplex.wire.items."""

    item: dict[str, object]
    previous_item_id: str | None = None


class ConversationItemDelete(ClientMessage, kw_only=True, tag="conversation.item.delete"):
    """Takes an item out."""

    item_id: str


class ConversationItemRetrieve(ClientMessage, kw_only=True, tag="conversation.item.retrieve"):
    """Asks for an item."""

    item_id: str


class ConversationItemTruncate(ClientMessage, kw_only=True, tag="conversation.item.truncate"):
    """Says how much of the agent's speech was heard."""

    item_id: str
    content_index: int
    audio_end_ms: float


class BargeInMessage(ClientMessage, kw_only=True, tag="barge_in"):
    """The user interrupts."""

    response_id: str | None = None


class PlaybackAck(ClientMessage, kw_only=True, tag="playback.ack"):
    """How much of a response was played, in milliseconds from its beginning."""

    played_ms: Annotated[float, msgspec.Meta(ge=0)]
    response_id: str | None = None
    item_id: str | None = None
    committed_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    truncate: bool = False


class TurnSignal(ClientMessage, kw_only=True, tag="turn.signal"):
    """What the client saw of the turn."""

    event: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class InputCancel(ClientMessage, kw_only=True, tag="input.cancel"):
    """Drops audio that isn't used yet."""


class InputTextAppend(ClientMessage, kw_only=True, tag="input.text.append"):
    """Text from the user."""

    text: str


ClientMessages = (
    InputAudioAppend
    | SessionEventAck
    | SessionUpdate
    | SessionCreate
    | SessionResume
    | SessionClose
    | SessionHeartbeat
    | InputAudioCommit
    | InputAudioClear
    | InputCancel
    | InputTextAppend
    | ResponseCreate
    | ResponseCancel
    | OutputAudioClear
    | ConversationItemCreate
    | ConversationItemDelete
    | ConversationItemRetrieve
    | ConversationItemTruncate
    | BargeInMessage
    | PlaybackAck
    | TurnSignal
)

decoder = msgspec.json.Decoder(ClientMessages)
