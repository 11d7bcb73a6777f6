"""The user's side of a session: turns found by voice activity, or committed by the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duplex.conversation import Item, Part
from duplex.errors import SessionError
from duplex.events import (
    InputCleared,
    InputCommitted,
    ItemAdded,
    ItemDone,
    OverlapDecided,
    UserStarted,
    UserStopped,
    UserTimedOut,
)
from duplex.ids import new_id
from duplex.overlap import Overlap
from duplex.settings import OverlapPolicy
from duplex.turns import SpeechStarted, SpeechStopped, SpeechTimeout, Turn, UserTurns
from media.vad import WINDOW_MS

if TYPE_CHECKING:
    from duplex.session import Session

_MIN_COMMIT_MS = 100.0


class User:
    """What the user says, as the client is told of it. Media time from the session's start."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns: UserTurns | None = None
        self._overlap: Overlap | None = None
        self._item: str | None = None
        self._after: str | None = None
        """The item that was the newest when the user began to speak, "root" if none was."""
        self._buffered_ms = 0.0
        self._sent = self._spoken = False
        self.configure()

    @property
    def wants_vad(self) -> bool:
        """Whether the user's audio has to be looked at for speech."""
        return self._turns is not None

    @property
    def begun(self) -> bool:
        """Whether the user has said something: found speech or, unlooked for, any audio."""
        return self._spoken or (self._sent and not self.wants_vad)

    def configure(self) -> None:
        """Takes over the session's settings; a turn under way goes on."""
        settings = self._session.settings
        detection = settings.turn_detection
        if detection is None:
            self._turns = self._overlap = None
            return
        if self._turns is None:
            heard_ms = self._session.intake.heard * self._session.frame_ms
            self._turns = UserTurns(detection, heard_ms)
        self._turns.detection = detection
        interrupts = detection.interrupt_response and settings.overlap_policy != "listen_only"
        policy: OverlapPolicy = "barge_in_on_speech" if interrupts else "listen_only"
        if self._overlap is None:
            self._overlap = Overlap(policy)
        self._overlap.policy = policy
        self._overlap.short_ack_ms = settings.overlap_short_ack_ms
        self._overlap.barge_in_ms = settings.overlap_barge_in_ms

    def sent(self, ms: float) -> None:
        """Audio of that length came from the client."""
        self._buffered_ms += ms
        self._sent = True

    def heard(self, probabilities: list[float]) -> None:
        """Takes the probability of speech in each of the next windows of the user's audio."""
        turns, overlap, responses = self._turns, self._overlap, self._session.responses
        if turns is None or overlap is None:
            return
        for probability in probabilities:
            if responses.speaking:
                turns.agent_spoke()
            turn = turns.hear(probability, WINDOW_MS)
            if turn is not None:
                self._tell(turn)
            threshold = turns.detection.threshold
            speaking = turns.speaking_since is not None and probability >= threshold
            decision = overlap.hear(
                user_speaks=speaking, agent_speaks=responses.speaking, ms=WINDOW_MS
            )
            if decision is not None:
                if decision.action == "barge_in":
                    self._session.interrupt("turn_detected")
                self._session.emit(
                    OverlapDecided(
                        policy=overlap.policy,
                        action=decision.action,
                        reason=decision.reason,
                        audio_ms=turns.now_ms,
                    )
                )

    def commit(self, *, may_be_empty: bool) -> None:
        """The client ends the user's turn itself. Raises SessionError if there is no audio."""
        if self._buffered_ms < _MIN_COMMIT_MS and not may_be_empty:
            raise SessionError(
                "input_audio_buffer_commit_empty",
                f"The buffer holds {self._buffered_ms:.0f} ms of audio; a turn has at least "
                f"{_MIN_COMMIT_MS:.0f} ms.",
            )
        if self._turns is not None:
            self._turns.commit()
        self._end_turn(self._item or new_id("item"))

    def clear(self) -> None:
        """The client forgets what it sent and didn't commit. The model has heard it."""
        self._buffered_ms = 0.0
        self._session.emit(InputCleared())

    def _tell(self, turn: Turn) -> None:
        session = self._session
        match turn:
            case SpeechStarted():
                self._item, self._spoken = new_id("item"), True
                self._after = session.conversation.last_id or "root"
                session.emit(UserStarted(item_id=self._item, audio_ms=turn.at_ms))
            case SpeechStopped():
                item = self._item or new_id("item")
                session.emit(UserStopped(item_id=item, audio_ms=turn.at_ms))
                self._end_turn(item)
            case SpeechTimeout():
                item = new_id("item")
                session.emit(UserTimedOut(item_id=item, from_ms=turn.from_ms, to_ms=turn.to_ms))
                self._end_turn(item)

    def _end_turn(self, item_id: str) -> None:
        session = self._session
        part = Part(type="input_audio", audio_ms=self._buffered_ms)
        item = Item(id=item_id, role="user", parts=[part])
        # The agent may answer before it is certain that the user has ended: what was asked still
        # comes before its answer.
        after = self._after
        if after is not None and after != "root" and after not in session.conversation:
            after = None  # it was deleted meanwhile
        previous = session.conversation.add(item, after)
        session.turn_ended()
        session.emit(InputCommitted(item_id=item_id, previous_item_id=previous))
        session.emit(ItemAdded(item=item.snapshot(), previous_item_id=previous))
        session.emit(ItemDone(item=item.snapshot(), previous_item_id=previous))
        self._item, self._after = None, None
        self._buffered_ms, self._spoken = 0.0, True
