"""One response: its item grows with every frame of the agent's, and is told of as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from duplex.commands import CreateResponse
from duplex.conversation import Item, Part
from duplex.events import (
    OutputAudio,
    OutputText,
    RateLimitsUpdated,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
)
from duplex.ids import new_id
from duplex.settings import ResponseSettings, Settings
from engine.api import StepOutput

if TYPE_CHECKING:
    from duplex.session import Session


def item_of(response_id: str) -> str:
    """The id of a response's one item."""
    return f"item_{response_id}"


class Response:
    """A response in progress."""

    def __init__(self, session: Session, asked: CreateResponse | None = None) -> None:
        self.id = new_id("resp")
        self.settings = _settings(session.settings, asked)
        self.frames = 0
        self._words = 0
        self._session = session
        self._part = Part(type="output_text" if self.settings.text_only else "output_audio")
        self._item = Item(
            id=item_of(self.id), role="assistant", status="in_progress", parts=[self._part]
        )
        self._previous = session.conversation.add(self._item)
        session.fence = session.fence.respond(self.id)
        session.ledger.begin(self.id, self._item, session.fence.turn)
        session.emit(
            ResponseCreated(
                response_id=self.id,
                item=self._item.snapshot(),
                previous_item_id=self._previous,
                conversation_id=session.conversation.id,
                settings=self.settings,
            )
        )
        if limits := session.rate_limits():
            session.emit(RateLimitsUpdated(limits=limits))

    @property
    def full(self) -> bool:
        """Whether it has all the frames that it may have."""
        limit = self.settings.max_output_tokens
        return limit is not None and self.frames >= limit

    def speak(self, output: StepOutput) -> None:
        """Passes a frame on."""
        session, settings = self._session, self._session.settings
        self._part.speak(session.frame_ms, output.text)
        if output.text:
            self._words += 1
            session.emit(OutputText(fence=session.fence, text=output.text))
        if not self.settings.text_only and output.pcm is not None:
            session.emit(
                OutputAudio(
                    fence=session.fence,
                    format=settings.output_format,
                    pcm=output.pcm,
                    frame_index=self.frames,
                    timings=output.timings if settings.stage_metrics else None,
                )
            )
        self.frames += 1

    def take_back(self, flushed_ms: float) -> None:
        """The transport hasn't sent the last audio: nobody has heard its words."""
        if flushed_ms:
            self._part.take_back(flushed_ms)

    def end(
        self, status: ResponseStatus, reason: str | None = None, error: str | None = None
    ) -> None:
        """Ends the response."""
        session = self._session
        self._item.status = "completed" if status == "completed" else "incomplete"
        if self._item.id in session.conversation:
            self._previous = session.conversation.before(self._item.id)
        everything = session.settings.playback_commit_policy == "commit_all_on_done"
        session.ledger.end(self.id, commit=everything)
        session.emit(
            ResponseDone(
                response_id=self.id,
                status=status,
                reason=reason,
                item=self._item.snapshot(),
                previous_item_id=self._previous,
                conversation_id=session.conversation.id,
                settings=self.settings,
                error=error,
                frames=self.frames,
                words=self._words,
                heard=session.intake.heard_since_last(),
            )
        )
        session.fence = session.fence.respond(None)


def _settings(settings: Settings, asked: CreateResponse | None) -> ResponseSettings:
    text_only, limit = settings.output_text_only, settings.max_output_tokens
    if asked is None:
        return ResponseSettings(text_only=text_only, max_output_tokens=limit)
    return ResponseSettings(
        text_only=text_only if asked.text_only is UNSET else asked.text_only,
        max_output_tokens=limit if asked.max_output_tokens is UNSET else asked.max_output_tokens,
        metadata=asked.metadata,
        substitutions=asked.substitutions,
    )
