"""How the agent's continuous stream becomes responses: one for the whole session, or one for each
utterance, so that clients that think in turns can talk with a model that doesn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duplex.commands import CreateResponse
from duplex.events import ResponseStatus
from duplex.response import Response
from duplex.utterances import Speech, Utterances
from engine.api import StepOutput

if TYPE_CHECKING:
    from duplex.session import Session


class Responses(Protocol):
    """A way of cutting the agent's stream."""

    @property
    def current(self) -> Response | None:
        """The response in progress."""
        ...

    @property
    def begun(self) -> bool:
        """Whether there has been one."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether a response may be ended for its length."""
        ...

    @property
    def speaking(self) -> bool:
        """Whether the agent is heard to speak now."""
        ...

    def hear(self, output: StepOutput, *, stale: bool) -> None:
        """Takes the agent's next frame; a stale one is not passed on."""
        ...

    def request(self, asked: CreateResponse) -> bool:
        """The client asks the agent to speak; False if it speaks when it will."""
        ...

    def interrupt(self, reason: str, flushed_ms: float) -> None:
        """What the agent is saying is not wanted any more; its transport took so much back."""
        ...

    def finish(self, status: ResponseStatus, reason: str) -> None:
        """The session ends."""
        ...


class OneResponse:
    """The whole session is one response, a delta for every frame."""

    bounded = False

    def __init__(self, session: Session, silence_frames: int) -> None:
        self.current: Response | None = None
        self._session = session
        self._utterances = Utterances(silence_frames)

    @property
    def begun(self) -> bool:
        """Whether the agent has been heard."""
        return self.current is not None

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

    def request(self, asked: CreateResponse) -> bool:
        """Changes nothing."""
        return False

    def interrupt(self, reason: str, flushed_ms: float) -> None:
        """The stream goes on: the model has heard the user too."""
        if self.current is not None:
            self.current.take_back(flushed_ms)

    def finish(self, status: ResponseStatus, reason: str) -> None:
        """Ends the one response."""
        if self.current is not None:
            self.current.end(status, error=reason if status == "failed" else None)
            self.current = None


class UtteranceResponses:
    """Each of the agent's utterances is a response; its silence in between is not sent.

    An interrupted utterance stays silent to its end. A response that the client asked for waits
    for the next utterance, and ends empty if none begins within `patience_frames`.
    """

    bounded = True

    def __init__(self, session: Session, silence_frames: int, patience_frames: int) -> None:
        self.current: Response | None = None
        self.begun = False
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
                    self._end("completed")
                self._muted = False
            case Speech.SILENT:
                self._wait()

    def request(self, asked: CreateResponse) -> bool:
        """Begins a response at once; the next utterance goes into it."""
        self._waiting = self._patience_frames
        self._begin(asked)
        return True

    def interrupt(self, reason: str, flushed_ms: float) -> None:
        """Cancels the response and mutes the rest of its utterance."""
        self._muted = self._utterances.speaking
        if self.current is not None:
            self.current.take_back(flushed_ms)
            self._end("cancelled", reason)

    def finish(self, status: ResponseStatus, reason: str) -> None:
        """Ends the response in progress."""
        self._end(status, error=reason if status == "failed" else None)

    def _speak(self, output: StepOutput) -> None:
        if self._muted:
            return
        self._waiting = 0
        response = self.current or self._begin()
        response.speak(output)
        if response.full:
            self._end("incomplete", "max_output_tokens")
            self._muted = True

    def _wait(self) -> None:
        if self._waiting:
            self._waiting -= 1
            if not self._waiting:
                self._end("completed")

    def _begin(self, asked: CreateResponse | None = None) -> Response:
        self.current = Response(self._session, asked)
        self.begun = True
        return self.current

    def _end(
        self, status: ResponseStatus, reason: str | None = None, error: str | None = None
    ) -> None:
        response, self.current = self.current, None
        self._waiting = 0
        if response is not None:
            response.end(status, reason, error)
