"""Events of a session, as server messages of the realtime protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from duplex import events
from duplex.conversation import Item
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.settings import Capabilities, Settings, Substitution
from duplex.wire.items import present, write_item
from duplex.wire.output_audio import OutputEncoder
from duplex.wire.response_writer import Message, ResponseWriter, part_of, text_kind
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
        self._responses = ResponseWriter(spec, dialect)
        self._text_only = False
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
                part = part_of(event.fence.response)
                yield f"response.{text_kind(self._text_only)}.delta", part | {"delta": event.text}
            case events.SessionCreated():
                yield "session.created", self._session(event)
            case events.SessionUpdated():
                yield "session.updated", self._session(event)
            case events.ResponseCreated():
                self._audio_ms, self._text_only = 0.0, event.settings.text_only
                yield from self._responses.created(event)
            case events.ResponseDone():
                yield from self._responses.done(event)
            case events.RateLimitsUpdated():
                yield "rate_limits.updated", {"rate_limits": [_limit(n) for n in event.limits]}
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
                yield "input_audio_buffer.committed", msgspec.structs.asdict(event)
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
                yield "overlap.decision", present(**msgspec.structs.asdict(event))
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
        self._responses.session = event.settings
        session = self.session_object(event.settings, event.substitutions)
        fields: dict[str, Any] = {"session_id": self._session_id, "session": session}
        if type(event) is events.SessionCreated and event.resume_token is not None:
            fields["resume_token"] = session["resume_token"] = event.resume_token
            fields["attachment_generation"] = event.attachment_generation
            session["attachment_generation"] = event.attachment_generation
        return fields

    def _item(self, item: Item, previous: str | None) -> dict[str, Any]:
        # null says that the item is the first; clients append one of which nothing is said
        return {"item": write_item(item, self.dialect), "previous_item_id": previous}


def _limit(limit: events.RateLimit) -> dict[str, Any]:
    return {
        "name": limit.name,
        "limit": limit.limit,
        "remaining": limit.remaining,
        "reset_seconds": round(limit.reset_s, 3),
    }


def _error_object(error: SessionError) -> dict[str, Any]:
    return present(
        type=error.type,
        code=error.code,
        message=error.message,
        param=error.param,
        event_id=error.event_id,
    )
