"""What a client can ask of a session, in no protocol's words."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duplex.conversation import Item
from duplex.settings import SettingsPatch, Substitution
from media.formats import AudioFormat, Pcm


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all commands. `event_id` is the client's name for it, echoed in errors."""

    event_id: str | None = None


class UpdateSession(Command, frozen=True, kw_only=True):
    """Changes settings; the first one takes the slot."""

    patch: SettingsPatch
    substitutions: tuple[Substitution, ...] = ()
    written: tuple[str, ...] = ()
    """The fields that the client wrote, by their paths: what was substituted there before isn't
    any more.
    """
    paths: dict[str, str] = {}
    """The client's own paths of settings, by the settings' names: for errors found later."""


class AppendAudio(Command, frozen=True, kw_only=True, gc=False):
    """A chunk of the caller's audio, of any length. None means the session's own format or rate."""

    audio: bytes
    format: AudioFormat | None = None
    rate: int | None = None
    video: tuple[bytes, ...] = ()
    """Encoded images for the frame that this chunk completes."""


class AppendPcm(Command, frozen=True, kw_only=True, gc=False):
    """A chunk of the caller's audio that its transport has decoded, of any length."""

    pcm: Pcm
    rate: int
    """Samples a second."""
    image: bytes | None = None
    """The camera's latest image, encoded: it takes the place of one that no frame has taken."""


class CommitInput(Command, frozen=True, kw_only=True, gc=False):
    """The client says that an utterance is over; a lockstep model needs no telling."""

    may_be_empty: bool = False


class ClearInput(Command, frozen=True, kw_only=True, gc=False):
    """Forget the audio that doesn't fill a frame yet."""


class CreateResponse(Command, frozen=True, kw_only=True):
    """The client wants the agent to speak. What is UNSET is as the session has it."""

    text_only: bool | UnsetType = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    metadata: dict[str, str] | None = None
    substitutions: tuple[Substitution, ...] = ()


class BargeIn(Command, frozen=True, kw_only=True, gc=False):
    """Interrupts the agent: what is queued for playback is dropped.

    With `response_id` only if that is the response in progress, so that a late interrupt can't
    hit the next one. `required` makes it an error that nothing is in progress.
    """

    response_id: str | None = None
    required: bool = False


class ClearOutput(Command, frozen=True, kw_only=True, gc=False):
    """Drop what is queued for playback. `required` makes it an error that nothing was ever said."""

    required: bool = False


class CreateItem(Command, frozen=True, kw_only=True):
    """Adds an item to the conversation, after another one: see `Conversation.add`."""

    item: Item
    after: str | None = None


class DeleteItem(Command, frozen=True, kw_only=True):
    """Takes an item out of the conversation."""

    item_id: str


class RetrieveItem(Command, frozen=True, kw_only=True):
    """Asks for an item as the server has it."""

    item_id: str


class TruncateItem(Command, frozen=True, kw_only=True):
    """Keeps of the agent's speech only what was heard, up to a time in milliseconds."""

    item_id: str
    content_index: int
    audio_end_ms: float


class AckPlayback(Command, frozen=True, kw_only=True):
    """How much of a response was played. Without ids it means the response in progress."""

    response_id: str | None = None
    item_id: str | None = None
    played_ms: float
    committed_ms: float | None = None
    truncate: bool = False


class SignalTurn(Command, frozen=True, kw_only=True):
    """What the client has observed of the turn, for the record."""

    event: str


class AppendText(Command, frozen=True, kw_only=True):
    """Text from the user, for models that take it."""

    text: str


class Heartbeat(Command, frozen=True, kw_only=True, gc=False):
    """Shows that the client lives."""


class AckEvent(Command, frozen=True, kw_only=True, gc=False):
    """The client has all events up to this number."""

    server_event_seq: int


class ResumeSession(Command, frozen=True, kw_only=True):
    """A new socket asks for a session that lost its own: see `duplex.resume`."""

    session_id: str
    resume_token: str
    last_received_server_event_seq: int


class CloseSession(Command, frozen=True, kw_only=True, gc=False):
    """Ends the session after what is under way is delivered."""
