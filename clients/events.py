"""What a server says in a realtime session, as types. JSON in, events out, no I/O.

Source: OpenAI's Realtime API (server events), GA and beta names alike, and the full-duplex
extensions.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping

import msgspec

from clients.errors import BadEvent
from media.formats import AudioFormat, Pcm, decode, parse_format


class AudioFrame(msgspec.Struct, frozen=True, gc=False):
    """A piece of the agent's voice."""

    pcm: Pcm
    """[n]; a lockstep model's pieces are whole frames."""
    index: int
    """Counts the frames of the session from 0, those that were lost on the way included."""
    response_id: str
    sample_rate: int
    received_at: float
    """When it came, in seconds of the monotonic clock."""


class Text(msgspec.Struct, frozen=True, gc=False):
    """A piece of what the agent says, or writes."""

    text: str
    response_id: str


class SessionCreated(msgspec.Struct, frozen=True):
    """The session exists. `session` is the server's session object."""

    session_id: str
    session: Mapping[str, object]


class SessionUpdated(msgspec.Struct, frozen=True):
    """The settings now in force."""

    session_id: str
    session: Mapping[str, object]


class SessionClosed(msgspec.Struct, frozen=True):
    """The session is over; nothing comes after it."""

    session_id: str
    reason: str


class ResponseCreated(msgspec.Struct, frozen=True):
    """The agent begins."""

    response_id: str


class ResponseDone(msgspec.Struct, frozen=True):
    """The agent has ended. `status` is completed, cancelled, failed or incomplete."""

    response_id: str
    status: str


class ServerError(msgspec.Struct, frozen=True):
    """A request that failed, or a failure of the server. The session may well go on."""

    code: str
    message: str
    type: str = ""
    param: str | None = None
    event_id: str | None = None


class Other(msgspec.Struct, frozen=True):
    """Any other event, as it came."""

    type: str
    data: Mapping[str, object]


Event = (
    AudioFrame
    | Text
    | SessionCreated
    | SessionUpdated
    | SessionClosed
    | ResponseCreated
    | ResponseDone
    | ServerError
    | Other
)


class _Metadata(msgspec.Struct, gc=False):
    frame_index: int = -1


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None
    type: str | None = None
    param: str | None = None
    event_id: str | None = None


class _Response(msgspec.Struct):
    id: str = ""
    status: str = ""


class _Message(msgspec.Struct, gc=False):
    """The fields that matter of all events at once: one pass over the JSON, whatever it is."""

    type: str
    delta: str = ""
    response_id: str = ""
    format: str = ""
    sample_rate_hz: int = 0
    metadata: _Metadata | None = None
    session_id: str = ""
    session: dict[str, object] | None = None
    response: _Response | None = None
    error: _Error | None = None
    reason: str = ""


_AUDIO = frozenset(("response.output_audio.delta", "response.audio.delta"))
_TEXT = frozenset(
    ("response.output_audio_transcript.delta", "response.audio_transcript.delta")
    + ("response.output_text.delta", "response.text.delta")
)

_messages = msgspec.json.Decoder(_Message)
_objects = msgspec.json.Decoder(dict[str, object])


class EventReader:
    """Reads one session's messages. Keeps the index of frames that come without one."""

    def __init__(self, output_format: AudioFormat, output_rate: int) -> None:
        """What a delta of audio is in if it doesn't say so itself; the rate is in Hz."""
        self._format = output_format
        self._rate = output_rate
        self._index = 0

    def read(self, data: bytes | str, received_at: float) -> Event:
        """One message as an event. Raises BadEvent for what is none."""
        try:
            message = _messages.decode(data)
            if message.type in _AUDIO:
                return self._audio(message, received_at)
            return _event(message, data)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise BadEvent(f"the server sent what is no event: {error}") from error

    def _audio(self, message: _Message, received_at: float) -> AudioFrame:
        if message.metadata is not None and message.metadata.frame_index >= 0:
            self._index = message.metadata.frame_index
        index = self._index
        self._index += 1
        audio_format = parse_format(message.format) if message.format else self._format
        return AudioFrame(
            pcm=decode(audio_format, binascii.a2b_base64(message.delta)),
            index=index,
            response_id=message.response_id,
            sample_rate=message.sample_rate_hz or self._rate,
            received_at=received_at,
        )


def _event(message: _Message, data: bytes | str) -> Event:
    kind = message.type
    if kind in _TEXT:
        return Text(message.delta, message.response_id)
    match kind:
        case "session.created":
            return SessionCreated(message.session_id, message.session or {})
        case "session.updated":
            return SessionUpdated(message.session_id, message.session or {})
        case "session.closed":
            return SessionClosed(message.session_id, message.reason)
        case "response.created" if message.response is not None:
            return ResponseCreated(message.response.id)
        case "response.done" if message.response is not None:
            return ResponseDone(message.response.id, message.response.status)
        case "error" if message.error is not None:
            error = message.error
            return ServerError(
                code=error.code or "unknown",
                message=error.message,
                type=error.type or "",
                param=error.param,
                event_id=error.event_id,
            )
    return Other(kind, _objects.decode(data))
