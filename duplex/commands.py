"""What a client can ask of a session, in no protocol's words."""

from __future__ import annotations

import msgspec

from duplex.settings import SettingsPatch, Substitution
from media.formats import AudioFormat


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all commands. `event_id` is the client's name for it, echoed in errors."""

    event_id: str | None = None


class UpdateSession(Command, frozen=True, kw_only=True):
    """Changes settings; the first one takes the slot."""

    patch: SettingsPatch
    substitutions: tuple[Substitution, ...] = ()


class AppendAudio(Command, frozen=True, kw_only=True, gc=False):
    """A chunk of the caller's audio, of any length. None means the session's own format or rate."""

    audio: bytes
    format: AudioFormat | None = None
    rate: int | None = None


class CommitInput(Command, frozen=True, kw_only=True, gc=False):
    """The client says that an utterance is over; a lockstep model needs no telling."""


class ClearInput(Command, frozen=True, kw_only=True, gc=False):
    """Forget the audio that doesn't fill a frame yet."""


class BargeIn(Command, frozen=True, kw_only=True, gc=False):
    """Interrupts the agent: what is queued for playback is dropped.

    With `response_id` only if that is the response in progress, so that a late interrupt can't
    hit the next one. `required` makes it an error that nothing is in progress.
    """

    response_id: str | None = None
    required: bool = False


class Heartbeat(Command, frozen=True, kw_only=True, gc=False):
    """Shows that the client lives."""


class AckEvent(Command, frozen=True, kw_only=True, gc=False):
    """The client has all events up to this number."""

    server_event_seq: int


class CloseSession(Command, frozen=True, kw_only=True, gc=False):
    """Ends the session after what is under way is delivered."""
