"""The messages of the realtime protocol that clients send, as types: JSON in, checked structs out.

Source: OpenAI's Realtime API reference (client events) and the duplex extensions. Unknown fields
are ignored, as clients grow; wrong types are refused by field name.
"""

from __future__ import annotations

import msgspec


class ClientMessage(msgspec.Struct, kw_only=True, gc=False, tag_field="type"):
    """Base of all client messages."""

    event_id: str | None = None


class SessionUpdate(ClientMessage, kw_only=True, tag="session.update"):
    """`session` is flat or nested; see duplex.wire.session_object."""

    session: dict[str, object]


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


class ResponseCancel(ClientMessage, kw_only=True, tag="response.cancel"):
    """Silences the response in progress."""

    response_id: str | None = None


class BargeInMessage(ClientMessage, kw_only=True, tag="barge_in"):
    """The user interrupts."""

    response_id: str | None = None


ClientMessages = (
    InputAudioAppend
    | SessionEventAck
    | SessionUpdate
    | SessionClose
    | SessionHeartbeat
    | InputAudioCommit
    | InputAudioClear
    | ResponseCancel
    | BargeInMessage
)

decoder = msgspec.json.Decoder(ClientMessages)
