"""The realtime wire: client messages in, commands out; events in, server messages out. No I/O.

One `RealtimeWire` belongs to one session and outlives its sockets: it numbers the session's
server events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from duplex.commands import (
    AckEvent,
    AppendAudio,
    BargeIn,
    ClearInput,
    CloseSession,
    Command,
    CommitInput,
    Heartbeat,
    UpdateSession,
)
from duplex.errors import SessionError
from duplex.events import (
    Event,
    Failed,
    HeartbeatAcknowledged,
    InputCleared,
    InputCommitted,
    OutputAudio,
    OutputText,
    OverlapDecided,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionUpdated,
)
from duplex.ids import new_id
from duplex.settings import Capabilities
from duplex.wire import messages
from duplex.wire.output_audio import OutputEncoder
from duplex.wire.session_reader import read_session
from duplex.wire.session_writer import Dialect, write_session
from engine.api import EngineSpec
from media.formats import UnsupportedFormat, parse_format

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

_CLOSE_CODES = {
    "client_close": 1000,
    "disconnected": 1000,
    "idle_timeout": 1000,
    "resource_exhausted": 1013,
    "server_shutdown": 1012,
    "slow_reader": 1008,
}


def close_code(reason: str) -> int:
    """The WebSocket close code for the reason a session ended with."""
    return _CLOSE_CODES.get(reason, 1011)


def dialect_of(query: str | None, beta_header: str | None) -> Dialect:
    """The dialect of server events: `?dialect=`, else the `OpenAI-Beta` header, else GA.

    Raises SessionError for an unknown one.
    """
    match query:
        case "ga":
            return "ga"
        case "beta":
            return "beta"
        case None | "":
            return "beta" if "realtime=v1" in (beta_header or "") else "ga"
    raise SessionError("invalid_value", f"Unknown dialect {query!r}: ga or beta.", param="dialect")


class RealtimeWire:
    """The realtime protocol of one session."""

    def __init__(
        self,
        session_id: str,
        spec: EngineSpec,
        capabilities: Capabilities,
        dialect: Dialect = "ga",
    ) -> None:
        self.dialect = dialect
        self.server_event_seq = 0
        """Number of the last event rendered."""
        self._session_id = session_id
        self._spec = spec
        self._capabilities = capabilities
        self._event_prefix = new_id("event")
        self._text_only = False
        self._audio = OutputEncoder(spec.sample_rate)
        self._audio_ms = 0.0

    # --- in ---------------------------------------------------------------------------------

    def parse(self, data: bytes | str) -> Command:
        """A client message as a command. Raises SessionError, with the client's event id."""
        try:
            message = messages.decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise _refusal(data, str(error)) from error
        try:
            return self._command(message)
        except SessionError as error:
            error.event_id = message.event_id
            raise

    def _command(self, message: messages.ClientMessages) -> Command:
        event_id = message.event_id
        match message:
            case messages.InputAudioAppend():
                return self._append(message)
            case messages.SessionEventAck():
                return AckEvent(event_id=event_id, server_event_seq=message.server_event_seq)
            case messages.SessionUpdate():
                patch, substitutions = read_session(message.session, self._spec)
                return UpdateSession(event_id=event_id, patch=patch, substitutions=substitutions)
            case messages.InputAudioCommit():
                return CommitInput(event_id=event_id)
            case messages.InputAudioClear():
                return ClearInput(event_id=event_id)
            case messages.ResponseCancel():
                return BargeIn(event_id=event_id, response_id=message.response_id, required=True)
            case messages.BargeInMessage():
                return BargeIn(event_id=event_id, response_id=message.response_id)
            case messages.SessionHeartbeat():
                return Heartbeat(event_id=event_id)
            case messages.SessionClose():
                return CloseSession(event_id=event_id)

    def _append(self, message: messages.InputAudioAppend) -> AppendAudio:
        name, audio_format = message.format or message.input_audio_format, None
        if name is not None:
            try:
                audio_format = parse_format(name)
            except UnsupportedFormat as error:
                param = "format" if message.format else "input_audio_format"
                raise SessionError("unsupported_audio_format", str(error), param=param) from error
        if message.video_frames and not self._spec.video:
            raise SessionError(
                "unsupported_modality", "The model takes no video.", param="video_frames"
            )
        return AppendAudio(
            event_id=message.event_id,
            audio=message.audio,
            format=audio_format,
            rate=message.sample_rate_hz,
        )

    # --- out --------------------------------------------------------------------------------

    def render(self, event: Event) -> list[bytes]:
        """The server messages that tell of an event, as JSON, numbered in this order."""
        if type(event) is OutputAudio:
            return [self._audio_delta(event)]
        return [_encode(self._numbered(kind, fields)) for kind, fields in self._messages(event)]

    def _numbered(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.server_event_seq = seq = self.server_event_seq + 1
        return {
            "type": _BETA_NAMES.get(kind, kind) if self.dialect == "beta" else kind,
            "event_id": f"{self._event_prefix}_{seq}",
            "server_event_seq": seq,
            **fields,
        }

    def _audio_delta(self, event: OutputAudio) -> bytes:
        response = event.fence.response
        audio, samples = self._audio.encode(event.format, event.pcm)
        rate = self._audio.rate
        self._audio_ms += 1000 * samples / rate
        fields: dict[str, Any] = {
            "response_id": response,
            "item_id": f"item_{response}",
            "output_index": 0,
            "content_index": 0,
            "delta": audio,
            "format": event.format.value,
            "sample_rate_hz": rate,
        }
        numbered = self._numbered("response.output_audio.delta", fields)
        metadata: dict[str, Any] = {
            "audio_duration_ms": round(self._audio_ms, 3),
            "server_event_seq": self.server_event_seq,
            "frame_index": event.frame_index,
            "epoch": event.fence.epoch,
        }
        if event.timings is not None:
            metadata["stage_metrics"] = {
                "step_ms": round(1000 * event.timings.step_s, 3),
                "rows": event.timings.rows,
            }
        numbered["metadata"] = metadata
        return _encode(numbered)

    def _messages(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case OutputText():
                yield (
                    self._text_kind("delta"),
                    self._part(event.fence.response) | {"delta": event.text},
                )
            case SessionCreated():
                yield "session.created", self._session(event)
            case SessionUpdated():
                self._text_only = event.settings.output_text_only
                yield "session.updated", self._session(event)
            case ResponseCreated():
                yield from self._response_created(event)
            case ResponseDone():
                yield from self._response_done(event)
            case InputCommitted():
                committed = {"item_id": event.item_id}
                if event.previous_item_id is not None:
                    committed["previous_item_id"] = event.previous_item_id
                yield "input_audio_buffer.committed", committed
            case InputCleared():
                yield "input_audio_buffer.cleared", {}
            case OverlapDecided():
                yield (
                    "overlap.decision",
                    {"policy": event.policy, "action": event.action, "reason": event.reason},
                )
            case HeartbeatAcknowledged():
                yield "session.heartbeat_ack", {"session_id": self._session_id}
            case Failed():
                yield "error", {"error": _error_object(event.error)}
            case SessionExpired():
                yield (
                    "session.expired",
                    {"session_id": self._session_id, "reason": "idle_timeout"},
                )
            case SessionClosed():
                yield (
                    "session.closed",
                    {"session_id": self._session_id, "reason": event.reason},
                )
            case _:
                raise TypeError(f"no message for {type(event).__name__}")

    def _session(self, event: SessionCreated | SessionUpdated) -> dict[str, Any]:
        session = write_session(
            self._session_id,
            event.settings,
            event.substitutions,
            self._spec,
            self._capabilities,
            dialect=self.dialect,
        )
        return {"session_id": self._session_id, "session": session}

    def _text_kind(self, suffix: Literal["delta", "done"]) -> str:
        return f"response.output_{'text' if self._text_only else 'audio_transcript'}.{suffix}"

    def _part(self, response: str | None) -> dict[str, Any]:
        return {
            "response_id": response,
            "item_id": f"item_{response}",
            "output_index": 0,
            "content_index": 0,
        }

    def _content(self, transcript: str) -> dict[str, Any]:
        if self._text_only:
            return {"type": "text" if self.dialect == "beta" else "output_text", "text": transcript}
        return {
            "type": "audio" if self.dialect == "beta" else "output_audio",
            "transcript": transcript,
        }

    def _item(self, response: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"item_{response}",
            "object": "realtime.item",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, response: str, status: str, output: list[Any]) -> dict[str, Any]:
        return {
            "id": response,
            "object": "realtime.response",
            "status": status,
            "output": output,
        }

    def _response_created(self, event: ResponseCreated) -> Iterator[tuple[str, dict[str, Any]]]:
        response = event.response_id
        self._audio_ms = 0.0
        yield "response.created", {"response": self._response(response, "in_progress", [])}
        yield (
            "response.output_item.added",
            {
                "response_id": response,
                "output_index": 0,
                "item": self._item(response, "in_progress", []),
            },
        )
        yield "response.content_part.added", self._part(response) | {"part": self._content("")}

    def _response_done(self, event: ResponseDone) -> Iterator[tuple[str, dict[str, Any]]]:
        response, part = event.response_id, self._part(event.response_id)
        content = self._content(event.transcript)
        item_status = "completed" if event.status == "completed" else "incomplete"
        item = self._item(response, item_status, [content])
        if not self._text_only:
            yield "response.output_audio.done", part
        text = {"text" if self._text_only else "transcript": event.transcript}
        yield self._text_kind("done"), part | text
        yield "response.content_part.done", part | {"part": content}
        yield (
            "response.output_item.done",
            {"response_id": response, "output_index": 0, "item": item},
        )
        yield "response.done", {"response": self._response(response, event.status, [item])}


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


def _refusal(data: bytes | str, problem: str) -> SessionError:
    """The error for what is no client message: what is wrong, where, and whose event."""
    try:
        raw: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return SessionError("invalid_json", f"The message is not JSON: {error}.")
    event_id = kind = None
    if isinstance(raw, dict):
        kind = raw.get("type")
        event_id = raw.get("event_id") if isinstance(raw.get("event_id"), str) else None
    what, _, where = problem.partition(" - at `$.")
    param = where.removesuffix("`") or None
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
    if param == "type" and isinstance(kind, str):
        return SessionError(
            "unknown_event", f"Unknown event {kind!r}.", param="type", event_id=event_id
        )
    code = "bad_audio" if param == "audio" and not missing else "invalid_value"
    return SessionError(code, f"{what}.", param=param, event_id=event_id)
