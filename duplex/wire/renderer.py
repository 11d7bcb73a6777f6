"""Events of a session, as server messages of the realtime protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from duplex import events
from duplex.conversation import Item
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.settings import Capabilities, Settings, Substitution
from duplex.wire.items import write_item, write_part
from duplex.wire.output_audio import OutputEncoder
from duplex.wire.session_writer import Dialect, write_session
from engine.api import EngineSpec

_encode = msgspec.json.Encoder().encode

_BETA_NAMES = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "conversation.item.added": "conversation.item.created",
}
_NOT_IN_BETA = frozenset(("conversation.item.done",))
_DUPLEX_ONLY = frozenset(("overlap.decision", "session.closed"))
"""What a plain Realtime client doesn't expect unasked."""

Message = tuple[str, dict[str, Any]]


class StageMetrics(msgspec.Struct, frozen=True, gc=False):
    """How the step of a frame went."""

    step_ms: float
    rows: int


class AudioMetadata(msgspec.Struct, frozen=True, gc=False):
    """What a delta says of its frame."""

    audio_duration_ms: float
    """Of the response so far, this frame included."""
    server_event_seq: int
    frame_index: int
    epoch: int
    stage_metrics: StageMetrics | UnsetType = UNSET


class AudioDelta(msgspec.Struct, frozen=True, gc=False):
    """The one message that is sent 12.5 times a second: a type of its own, since that is fast."""

    type: str
    event_id: str
    server_event_seq: int
    response_id: str | None
    item_id: str
    output_index: int
    content_index: int
    delta: bytes
    format: str
    sample_rate_hz: int
    metadata: AudioMetadata


class Renderer:
    """Renders the events of one session and numbers the messages. Outlives its sockets."""

    def __init__(
        self,
        session_id: str,
        spec: EngineSpec,
        capabilities: Capabilities | None,
        dialect: Dialect,
    ) -> None:
        self.dialect: Dialect = dialect
        self.seq = 0
        """Number of the last message."""
        self._session_id = session_id
        self._spec = spec
        self._capabilities = capabilities
        self._event_prefix = new_id("event")
        unspoken = _NOT_IN_BETA if dialect == "beta" else frozenset()
        self._unspoken = unspoken if capabilities is not None else unspoken | _DUPLEX_ONLY
        kind = "response.output_audio.delta"
        self._audio_delta_kind = _BETA_NAMES[kind] if dialect == "beta" else kind
        self._settings = Settings()
        self._audio = OutputEncoder(spec.sample_rate)
        self._audio_ms = 0.0

    def render(self, event: events.Event) -> list[bytes]:
        """The server messages that tell of an event, as JSON, in order."""
        if type(event) is events.OutputAudio:
            return [self._audio_delta(event)]
        return [
            _encode(self._numbered(kind, fields))
            for kind, fields in self._messages(event)
            if kind not in self._unspoken
        ]

    def notice(self, kind: str, fields: dict[str, Any]) -> bytes:
        """A message about the connection, not the session: it has no number."""
        event_id = new_id("event")
        about = {"type": kind, "event_id": event_id, "session_id": self._session_id}
        return _encode(about | fields)

    def session_object(
        self, settings: Settings, substitutions: tuple[Substitution, ...]
    ) -> dict[str, Any]:
        """The session as the wire has it."""
        return write_session(
            self._session_id,
            settings,
            substitutions,
            self._spec,
            self._capabilities,
            dialect=self.dialect,
        )

    def _numbered(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.seq = seq = self.seq + 1
        return {
            "type": _BETA_NAMES.get(kind, kind) if self.dialect == "beta" else kind,
            "event_id": f"{self._event_prefix}_{seq}",
            "server_event_seq": seq,
            **fields,
        }

    def _audio_delta(self, event: events.OutputAudio) -> bytes:
        audio, samples = self._audio.encode(event.format, event.pcm)
        rate, response, timings = self._audio.rate, event.fence.response, event.timings
        self._audio_ms += 1000 * samples / rate
        self.seq = seq = self.seq + 1
        return _encode(
            AudioDelta(
                type=self._audio_delta_kind,
                event_id=f"{self._event_prefix}_{seq}",
                server_event_seq=seq,
                response_id=response,
                item_id=f"item_{response}",
                output_index=0,
                content_index=0,
                delta=audio,
                format=event.format.value,
                sample_rate_hz=rate,
                metadata=AudioMetadata(
                    audio_duration_ms=round(self._audio_ms, 3),
                    server_event_seq=seq,
                    frame_index=event.frame_index,
                    epoch=event.fence.epoch,
                    stage_metrics=UNSET
                    if timings is None
                    else StageMetrics(round(1000 * timings.step_s, 3), timings.rows),
                ),
            )
        )

    def _messages(self, event: events.Event) -> Iterator[Message]:
        match event:
            case events.OutputText():
                part = self._part(event.fence.response)
                yield self._text_kind("delta"), part | {"delta": event.text}
            case events.SessionCreated():
                yield "session.created", self._session(event)
            case events.SessionUpdated():
                yield "session.updated", self._session(event)
            case events.ResponseCreated():
                yield from self._response_created(event)
            case events.ResponseDone():
                yield from self._response_done(event)
            case events.UserStarted():
                fields = {"item_id": event.item_id, "audio_start_ms": round(event.audio_ms)}
                yield "input_audio_buffer.speech_started", fields
            case events.UserStopped():
                fields = {"item_id": event.item_id, "audio_end_ms": round(event.audio_ms)}
                yield "input_audio_buffer.speech_stopped", fields
            case events.UserTimedOut():
                fields = {
                    "item_id": event.item_id,
                    "audio_start_ms": round(event.from_ms),
                    "audio_end_ms": round(event.to_ms),
                }
                yield "input_audio_buffer.timeout_triggered", fields
            case events.InputCommitted():
                fields = {"item_id": event.item_id}
                yield "input_audio_buffer.committed", fields | _previous(event.previous_item_id)
            case events.InputCleared():
                yield "input_audio_buffer.cleared", {}
            case events.ItemAdded():
                yield "conversation.item.added", self._item(event.item, event.previous_item_id)
            case events.ItemDone():
                yield "conversation.item.done", self._item(event.item, event.previous_item_id)
            case events.ItemRetrieved():
                yield "conversation.item.retrieved", {"item": write_item(event.item, self.dialect)}
            case events.ItemDeleted():
                yield "conversation.item.deleted", {"item_id": event.item_id}
            case events.ItemTruncated():
                fields = {
                    "item_id": event.item_id,
                    "content_index": event.content_index,
                    "audio_end_ms": round(event.audio_end_ms),
                }
                yield "conversation.item.truncated", fields
            case events.OutputStarted():
                yield "output_audio_buffer.started", {"response_id": event.response_id}
            case events.OutputStopped():
                yield "output_audio_buffer.stopped", {"response_id": event.response_id}
            case events.OutputCleared():
                yield "output_audio_buffer.cleared", {"response_id": event.response_id}
            case events.PlaybackAcknowledged():
                fields = msgspec.structs.asdict(event)
                yield "playback.acknowledged", fields
            case events.OverlapDecided():
                yield "overlap.decision", msgspec.structs.asdict(event)
            case events.TurnSignalled():
                yield "turn.event", {"event": event.event}
            case events.HeartbeatAcknowledged():
                yield "session.heartbeat_ack", {"session_id": self._session_id}
            case events.Failed():
                yield "error", {"error": _error_object(event.error)}
            case events.SessionExpired() if self._capabilities is None:
                error = SessionError("session_expired", "The session was idle for too long.")
                yield "error", {"error": _error_object(error)}
            case events.SessionExpired():
                fields = {"session_id": self._session_id, "reason": "idle_timeout"}
                yield "session.expired", fields
            case events.SessionClosed():
                fields = {"session_id": self._session_id, "reason": event.reason}
                yield "session.closed", fields
            case _:
                raise TypeError(f"no message for {type(event).__name__}")

    def _session(self, event: events.SessionCreated | events.SessionUpdated) -> dict[str, Any]:
        self._settings = event.settings
        session = self.session_object(event.settings, event.substitutions)
        fields: dict[str, Any] = {"session_id": self._session_id, "session": session}
        if type(event) is events.SessionCreated and event.resume_token is not None:
            fields["resume_token"] = session["resume_token"] = event.resume_token
            fields["attachment_generation"] = event.attachment_generation
            session["attachment_generation"] = event.attachment_generation
        return fields

    def _text_kind(self, suffix: Literal["delta", "done"]) -> str:
        text_only = self._settings.output_text_only
        return f"response.output_{'text' if text_only else 'audio_transcript'}.{suffix}"

    def _part(self, response: str | None) -> dict[str, Any]:
        return {
            "response_id": response,
            "item_id": f"item_{response}",
            "output_index": 0,
            "content_index": 0,
        }

    def _item(self, item: Item, previous: str | None) -> dict[str, Any]:
        return {"item": write_item(item, self.dialect)} | _previous(previous)

    def _response(
        self,
        event: events.ResponseCreated | events.ResponseDone,
        status: events.ResponseStatus,
        reason: str | None = None,
    ) -> dict[str, Any]:
        response: dict[str, Any] = {
            "id": event.response_id,
            "object": "realtime.response",
            "status": status,
            "conversation_id": event.conversation_id,
            "output": [],
        }
        if status != "in_progress":
            response["output"] = [write_item(event.item, self.dialect)]
            details = {"type": status}
            response["status_details"] = details | ({"reason": reason} if reason else {})
        modalities = ["text"] if self._settings.output_text_only else ["audio"]
        key = "modalities" if self.dialect == "beta" else "output_modalities"
        return response | {key: modalities}

    def _response_created(self, event: events.ResponseCreated) -> Iterator[Message]:
        response, item = event.response_id, event.item
        self._audio_ms = 0.0
        added = msgspec.structs.replace(item, parts=[])
        yield "response.created", {"response": self._response(event, "in_progress")}
        yield (
            "response.output_item.added",
            {
                "response_id": response,
                "output_index": 0,
                "item": write_item(added, self.dialect),
            },
        )
        yield "conversation.item.added", self._item(added, event.previous_item_id)
        part = self._part_object(item)
        yield "response.content_part.added", self._part(response) | {"part": part}

    def _response_done(self, event: events.ResponseDone) -> Iterator[Message]:
        response, item, part = event.response_id, event.item, self._part(event.response_id)
        text_only = item.parts[0].type == "output_text"
        words = item.parts[0].text or ""
        if not text_only:
            yield "response.output_audio.done", part
        kind = "text" if text_only else "audio_transcript"
        said = {"text" if text_only else "transcript": words}
        yield f"response.output_{kind}.done", part | said
        yield "response.content_part.done", part | {"part": self._part_object(item)}
        yield (
            "response.output_item.done",
            {
                "response_id": response,
                "output_index": 0,
                "item": write_item(item, self.dialect),
            },
        )
        yield "conversation.item.done", self._item(item, event.previous_item_id)
        yield "response.done", {"response": self._response(event, event.status, event.reason)}

    def _part_object(self, item: Item) -> dict[str, Any]:
        """A part as `response.content_part.*` has it: there its types are text and audio."""
        return write_part(item.parts[0], "beta")


def _previous(item_id: str | None) -> dict[str, Any]:
    return {} if item_id is None else {"previous_item_id": item_id}


def _error_object(error: SessionError) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": error.type,
        "code": error.code,
        "message": error.message,
    }
    if error.param is not None:
        fields["param"] = error.param
    if error.event_id is not None:
        fields["event_id"] = error.event_id
    return fields
