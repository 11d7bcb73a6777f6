"""Writes responses on the realtime wire: how one begins, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from duplex import events
from duplex.conversation import Item
from duplex.settings import Settings
from duplex.wire.items import present, write_item, write_part
from duplex.wire.session_writer import Dialect, write_output_format
from engine.api import EngineSpec

Message = tuple[str, dict[str, Any]]
"""A server message's type and fields."""


def text_kind(text_only: bool) -> str:
    """What a response's words are called."""
    return "output_text" if text_only else "output_audio_transcript"


def part_of(response: str | None) -> dict[str, Any]:
    """Where in a response its one part is."""
    return {
        "response_id": response,
        "item_id": f"item_{response}",
        "output_index": 0,
        "content_index": 0,
    }


class ResponseWriter:
    """The responses of one session."""

    def __init__(self, spec: EngineSpec, dialect: Dialect) -> None:
        self.session = Settings()
        """The session's settings, as they were told last."""
        self._spec = spec
        self._dialect: Dialect = dialect

    def created(self, event: events.ResponseCreated) -> Iterator[Message]:
        """A response begins, with its item and its part."""
        response, item = event.response_id, event.item
        added = write_item(msgspec.structs.replace(item, parts=[]), self._dialect)
        previous = {"previous_item_id": event.previous_item_id}
        yield "response.created", {"response": self._response(event, "in_progress")}
        yield (
            "response.output_item.added",
            {"response_id": response, "output_index": 0, "item": added},
        )
        yield "conversation.item.added", {"item": added} | previous
        yield "response.content_part.added", part_of(response) | {"part": _part(item)}

    def done(self, event: events.ResponseDone) -> Iterator[Message]:
        """A response ends, its part and item before it."""
        response, item, part = event.response_id, event.item, part_of(event.response_id)
        text_only, written = event.settings.text_only, write_item(item, self._dialect)
        previous = {"previous_item_id": event.previous_item_id}
        if not text_only:
            yield "response.output_audio.done", part
        said = {"text" if text_only else "transcript": item.parts[0].words or ""}
        yield f"response.{text_kind(text_only)}.done", part | said
        yield "response.content_part.done", part | {"part": _part(item)}
        yield (
            "response.output_item.done",
            {"response_id": response, "output_index": 0, "item": written},
        )
        yield "conversation.item.done", {"item": written} | previous
        ended = {
            "output": [written],
            "status_details": _status_details(event),
            "usage": _usage(event),
        }
        yield "response.done", {"response": self._response(event, event.status) | ended}

    def _response(
        self, event: events.ResponseCreated | events.ResponseDone, status: events.ResponseStatus
    ) -> dict[str, Any]:
        settings = event.settings
        limit = settings.max_output_tokens or "inf"
        response: dict[str, Any] = {
            "id": event.response_id,
            "object": "realtime.response",
            "status": status,
            "conversation_id": event.conversation_id,
            "output": [],
        }
        response |= present(
            metadata=settings.metadata, substitutions=settings.substitutions or None
        )
        if self._dialect == "beta":
            modalities = ["text"] if settings.text_only else ["audio", "text"]
            return response | {"modalities": modalities, "max_output_tokens": limit}
        voice = self.session.voice or self._spec.default_voice
        output = present(format=write_output_format(self.session, self._spec), voice=voice)
        return response | {
            "output_modalities": ["text"] if settings.text_only else ["audio"],
            "max_output_tokens": limit,
            "audio": {"output": output},
        }


def _part(item: Item) -> dict[str, Any]:
    """A part as `response.content_part.*` has it: there its types are text and audio."""
    return write_part(item.parts[0], "beta")


def _status_details(event: events.ResponseDone) -> dict[str, Any]:
    kind = "server_error" if event.error == "internal_error" else "session_closed"
    error = None if event.error is None else {"type": kind, "code": event.error}
    return present(type=event.status, reason=event.reason, error=error)


def _usage(event: events.ResponseDone) -> dict[str, Any]:
    """A lockstep model takes a frame and gives a frame at a time; each is one audio token, and
    each frame that came with text is one text token besides.
    """
    return {
        "total_tokens": event.heard + event.frames + event.words,
        "input_tokens": event.heard,
        "output_tokens": event.frames + event.words,
        "input_token_details": {"audio_tokens": event.heard, "text_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"audio_tokens": event.frames, "text_tokens": event.words},
    }
