"""What a session tells its client, in no protocol's words."""

from __future__ import annotations

from typing import Literal

import msgspec

from duplex.conversation import Item
from duplex.errors import SessionError
from duplex.fence import Fence
from duplex.settings import ResponseSettings, Settings, Substitution
from engine.api import Pcm, Timings
from media.formats import AudioFormat

ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""


class SessionCreated(Event, frozen=True, kw_only=True):
    """The session exists."""

    settings: Settings
    substitutions: tuple[Substitution, ...] = ()
    resume_token: str | None = None
    attachment_generation: int = 0


class SessionUpdated(Event, frozen=True, kw_only=True):
    """The settings in force; the session has its slot."""

    settings: Settings
    substitutions: tuple[Substitution, ...] = ()


class ResponseCreated(Event, frozen=True, kw_only=True):
    """The agent begins; its item is in the conversation."""

    response_id: str
    item: Item
    previous_item_id: str | None
    conversation_id: str
    settings: ResponseSettings = ResponseSettings()


class OutputAudio(Event, frozen=True, kw_only=True, gc=False):
    """One frame of the agent."""

    fence: Fence
    format: AudioFormat
    pcm: Pcm
    """[frame_size]"""
    frame_index: int
    """Counts the response's frames from 0."""
    timings: Timings | None = None
    """How the frame's step went, for clients that ask."""


class OutputText(Event, frozen=True, kw_only=True, gc=False):
    """A piece of what the agent says."""

    fence: Fence
    text: str


class ResponseDone(Event, frozen=True, kw_only=True):
    """The agent is done."""

    response_id: str
    status: ResponseStatus
    reason: str | None = None
    """Why it isn't complete: turn_detected, client_cancelled or max_output_tokens."""
    item: Item
    previous_item_id: str | None
    conversation_id: str
    settings: ResponseSettings = ResponseSettings()
    error: str | None = None
    """Why it failed: the reason that the session ended with."""
    frames: int
    """Frames that the response had."""
    words: int = 0
    """Of these, frames that came with text."""
    heard: int = 0
    """Frames of the user that the model took since the response before, or the beginning."""


class UserStarted(Event, frozen=True, kw_only=True):
    """The user began to speak."""

    item_id: str
    audio_ms: float


class UserStopped(Event, frozen=True, kw_only=True):
    """The user's turn is over."""

    item_id: str
    audio_ms: float


class UserTimedOut(Event, frozen=True, kw_only=True):
    """Nobody has spoken for as long as the client allowed."""

    item_id: str
    from_ms: float
    to_ms: float


class ItemAdded(Event, frozen=True, kw_only=True):
    """An item is in the conversation; the agent's may still grow."""

    item: Item
    previous_item_id: str | None


class ItemDone(Event, frozen=True, kw_only=True):
    """An item is complete."""

    item: Item
    previous_item_id: str | None


class ItemRetrieved(Event, frozen=True, kw_only=True):
    """Answers RetrieveItem."""

    item: Item


class ItemDeleted(Event, frozen=True, kw_only=True):
    """Answers DeleteItem."""

    item_id: str


class ItemTruncated(Event, frozen=True, kw_only=True):
    """Answers TruncateItem with the end that is in force."""

    item_id: str
    content_index: int
    audio_end_ms: float


class PlaybackAcknowledged(Event, frozen=True, kw_only=True):
    """Answers AckPlayback with what is in the history now."""

    response_id: str
    item_id: str
    played_ms: float
    committed_ms: float


class OutputStarted(Event, frozen=True, kw_only=True):
    """The response's audio begins to be played: its transport has taken the first of it."""

    response_id: str


class OutputStopped(Event, frozen=True, kw_only=True):
    """The response is over, and its transport has sent all of its audio."""

    response_id: str


class OutputCleared(Event, frozen=True, kw_only=True):
    """What was queued for playback is dropped."""

    response_id: str


class TurnSignalled(Event, frozen=True, kw_only=True):
    """Answers SignalTurn."""

    event: str


class InputCommitted(Event, frozen=True, kw_only=True):
    """Answers CommitInput."""

    item_id: str
    previous_item_id: str | None


class InputCleared(Event, frozen=True, kw_only=True):
    """Answers ClearInput."""


class OverlapDecided(Event, frozen=True, kw_only=True):
    """What was done about both sides speaking."""

    policy: str
    action: Literal["listen", "barge_in", "drop"]
    reason: str
    audio_ms: float | None = None
    """Where in the user's audio it was decided; None if the client asked."""


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something a client may still do."""

    name: Literal["requests"]
    limit: int
    """After a pause."""
    remaining: int
    """At once, now."""
    reset_s: float
    """Until `limit` is there again."""


class RateLimitsUpdated(Event, frozen=True, kw_only=True):
    """What the client may still ask for; comes with each response."""

    limits: tuple[RateLimit, ...]


class HeartbeatAcknowledged(Event, frozen=True, kw_only=True):
    """Answers Heartbeat."""


class Failed(Event, frozen=True, kw_only=True):
    """Something that the client asked for, or the session itself, failed."""

    error: SessionError


class SessionExpired(Event, frozen=True, kw_only=True):
    """Nothing came from the client for the time that it had set."""

    idle_timeout_s: float


class SessionClosed(Event, frozen=True, kw_only=True):
    """The last event of a session."""

    reason: str
