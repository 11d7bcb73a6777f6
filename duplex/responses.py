"""How the agent's continuous stream becomes responses: one for the whole session, or one for each
utterance, so that clients that think in turns can talk with a model that doesn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duplex.conversation import Item, Part
from duplex.events import (
    OutputAudio,
    OutputText,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
)
from duplex.ids import new_id
from duplex.utterances import Speech, Utterances
from engine.api import StepOutput

if TYPE_CHECKING:
    from duplex.session import Session


def item_of(response_id: str) -> str:
    """The id of a response's one item."""
    return f"item_{response_id}"


class Response:
    """A response in progress: its item grows with every frame."""

    def __init__(self, session: Session) -> None:
        self.id = new_id("resp")
        self.frames = 0
        text_only = session.settings.output_text_only
        self.part = Part(type="output_text" if text_only else "output_audio")
        self.item = Item(
            id=item_of(self.id), role="assistant", status="in_progress", parts=[self.part]
        )
        self._session = session
        self._previous = session.conversation.add(self.item)
        session.fence = session.fence.respond(self.id)
        session.ledger.begin(self.id, session.fence.turn)
        session.emit(
            ResponseCreated(
                response_id=self.id,
                item=self.item.snapshot(),
                previous_item_id=self._previous,
                conversation_id=session.conversation.id,
            )
        )

    def speak(self, output: StepOutput) -> None:
        """Passes a frame on."""
        session, settings = self._session, self._session.settings
        self.part.speak(session.frame_ms, output.text)
        if output.text:
            session.emit(OutputText(fence=session.fence, text=output.text))
        if not settings.output_text_only and output.pcm is not None:
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

    def end(self, status: ResponseStatus, reason: str | None = None) -> None:
        """Ends the response."""
        session = self._session
        self.item.status = "completed" if status == "completed" else "incomplete"
        session.emit(
            ResponseDone(
                response_id=self.id,
                status=status,
                reason=reason,
                item=self.item.snapshot(),
                previous_item_id=self._previous,
                conversation_id=session.conversation.id,
                frames=self.frames,
            )
        )
        session.fence = session.fence.respond(None)


class Responses(Protocol):
    """A way of cutting the agent's stream."""

    @property
    def current(self) -> Response | None:
        """The response in progress."""
        ...

    @property
    def speaking(self) -> bool:
        """Whether the agent is heard to speak now."""
        ...

    def hear(self, output: StepOutput, *, stale: bool) -> None:
        """Takes the agent's next frame; a stale one is not passed on."""
        ...

    def request(self) -> None:
        """The client asks the agent to speak."""
        ...

    def interrupt(self, reason: str) -> None:
        """What the agent is saying is not wanted any more."""
        ...

    def finish(self, status: ResponseStatus) -> None:
        """The session ends."""
        ...


class OneResponse:
    """The whole session is one response, a delta for every frame."""

    def __init__(self, session: Session, silence_frames: int) -> None:
        self.current: Response | None = None
        self._session = session
        self._utterances = Utterances(silence_frames)

    @property
    def speaking(self) -> bool:
        """Whether the agent is in an utterance."""
        return self._utterances.speaking

    def hear(self, output: StepOutput, *, stale: bool) -> None:
        """Passes every frame on that isn't stale."""
        if output.pcm is None:
            return
        if self._session.user.wants_vad:
            self._utterances.hear(output.pcm, output.text)
        if stale:
            return
        if self.current is None:
            self.current = Response(self._session)
        self.current.speak(output)

    def request(self) -> None:
        """Nothing to do: the model speaks when it will."""

    def interrupt(self, reason: str) -> None:
        """The stream goes on: the model has heard the user too."""

    def finish(self, status: ResponseStatus) -> None:
        """Ends the one response."""
        if self.current is not None:
            self.current.end(status)
            self.current = None


class UtteranceResponses:
    """Each of the agent's utterances is a response; its silence in between is not sent.

    An interrupted utterance stays silent to its end. A response that the client asked for waits
    for the next utterance, and ends empty if none begins within `patience_frames`.
    """

    def __init__(self, session: Session, silence_frames: int, patience_frames: int) -> None:
        self.current: Response | None = None
        self._session = session
        self._utterances = Utterances(silence_frames)
        self._patience_frames = patience_frames
        self._waiting = 0
        self._muted = False

    @property
    def speaking(self) -> bool:
        """Whether the agent is in an utterance that the user hears."""
        return self._utterances.speaking and not self._muted

    def hear(self, output: StepOutput, *, stale: bool) -> None:
        """Passes utterances on."""
        if output.pcm is None:
            return
        match self._utterances.hear(output.pcm, output.text):
            case Speech.BEGINS:
                self._muted = stale
                self._speak(output)
            case Speech.GOES_ON:
                self._speak(output)
            case Speech.ENDED:
                if not self._muted:
                    self.finish("completed")
                self._muted = False
            case Speech.SILENT:
                self._wait()

    def request(self) -> None:
        """Begins a response at once; the next utterance goes into it."""
        self._waiting = self._patience_frames
        self.current = Response(self._session)

    def interrupt(self, reason: str) -> None:
        """Cancels the response and mutes the rest of its utterance."""
        self._muted = self._utterances.speaking
        if self.current is not None:
            self.current.end("cancelled", reason)
            self.current = None

    def finish(self, status: ResponseStatus) -> None:
        """Ends the response in progress."""
        if self.current is not None:
            self.current.end(status)
            self.current = None

    def _speak(self, output: StepOutput) -> None:
        if self._muted:
            return
        self._waiting = 0
        if self.current is None:
            self.current = Response(self._session)
        self.current.speak(output)

    def _wait(self) -> None:
        if self._waiting:
            self._waiting -= 1
            if not self._waiting:
                self.finish("completed")
