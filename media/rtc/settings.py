"""What a deployment decides about its peers."""

from __future__ import annotations

from dataclasses import dataclass

from media.rtc.events import ImageFormat


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server, as in the W3C's RTCIceServer. Credentials are TURN's."""

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Of one peer. Times in seconds."""

    ice_servers: tuple[IceServer, ...] = ()
    """None means host candidates only, and no waiting."""
    pictures: ImageFormat | None = None
    """None: the model sees nothing, so video is answered inactive and no receiver runs."""
    gather_timeout_s: float = 0.5
    """How long the answer waits for all ICE servers; it goes without those that are late."""
    connect_timeout_s: float = 15.0
    """From the answer to the end of the handshake."""
    vanish_after_s: float = 3.0
    """A peer from which no datagram has come for so long is gone."""
    close_timeout_s: float = 1.5
    """How long a goodbye may take before sockets are just closed."""
