"""What a peer tells its owner, and how it may end. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from media.formats import Pcm


class PeerState(StrEnum):
    """Where a peer stands."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class CloseReason(StrEnum):
    """Why a peer has ended."""

    LOCAL = "local"
    """`Peer.close` was called."""
    REMOTE = "remote"
    """The caller hung up."""
    VANISHED = "vanished"
    """Nothing has come from the caller for too long."""
    CONNECT_TIMEOUT = "connect_timeout"
    """The caller never reached us, or never finished the handshake."""
    FAILED = "failed"
    """ICE or DTLS failed."""
    OVERFLOW = "overflow"
    """More messages came than were read."""
    INTERNAL = "internal_error"
    """A fault of ours; it is in the log."""


class ImageFormat(StrEnum):
    """How a picture's bytes are laid out."""

    JPEG = "jpeg"
    RGB = "rgb"
    """[height, width, 3] uint8, without padding."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One video frame."""

    data: bytes
    format: ImageFormat
    width: int
    height: int
    timestamp: float
    """Seconds of the sender's video clock since its first frame."""


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """80 ms of the caller's audio, and the latest picture if one came since the last frame."""

    index: int
    """Counts frames from 0, those that were dropped unread included."""
    pcm: Pcm
    """[1920] float32 at 24 kHz."""
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The peer stands elsewhere now."""

    state: PeerState


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """The caller has opened the events channel: messages can be sent."""


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The caller has closed the events channel; audio may go on."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """One message on the events channel, text or binary as it was sent."""

    data: str | bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event."""

    reason: CloseReason


Event = AudioFrame | StateChanged | ChannelOpened | ChannelClosed | MessageReceived | Closed
