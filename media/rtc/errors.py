"""What can be wrong with a peer's request, or with ours to it."""

from __future__ import annotations


class RtcError(Exception):
    """Base of the errors of this package."""


class BadOffer(RtcError, ValueError):
    """An SDP offer that can't be answered. `field` names the part that is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class MessageTooLarge(RtcError, ValueError):
    """A data channel message over the limit. Nothing was sent."""


class ChannelNotOpen(RtcError):
    """The caller has not opened the events channel, or has closed it. Nothing was sent."""


class ChannelFull(RtcError):
    """The caller does not take its messages; the limit on what waits is reached. Nothing was
    sent."""
