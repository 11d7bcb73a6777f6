"""The events channel: text messages to and from the caller, each of a size every MTU carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiortc import RTCDataChannel

from media.rtc.errors import ChannelFull, ChannelNotOpen, MessageTooLarge
from media.rtc.events import ChannelClosed, ChannelOpened, Event, MessageReceived

LABEL: Final = "oai-events"

MAX_MESSAGE_BYTES: Final = 16 * 1024
"""Of an outgoing message, in UTF-8."""

MAX_WAITING_BYTES: Final = 1024 * 1024
"""Of messages that the caller has not taken yet."""


class EventsChannel:
    """Wraps the channel that the caller opens under `LABEL`; others are closed."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._channel: RTCDataChannel | None = None

    def adopt(self, channel: RTCDataChannel) -> None:
        """Takes a channel that the caller has opened."""
        if channel.label != LABEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self._on_close)
        self._emit(ChannelOpened())

    def send(self, text: str) -> None:
        """Sends a message. Raises MessageTooLarge, ChannelNotOpen or ChannelFull."""
        size = len(text.encode())
        if size > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(f"a message of {size} bytes is over {MAX_MESSAGE_BYTES}")
        channel = self._channel
        if channel is None or channel.readyState != "open":
            raise ChannelNotOpen(f"the channel {LABEL!r} is not open")
        if channel.bufferedAmount + size > MAX_WAITING_BYTES:
            raise ChannelFull(f"{channel.bufferedAmount} bytes wait for the caller already")
        channel.send(text)

    def _on_message(self, data: str | bytes) -> None:
        self._emit(MessageReceived(data))

    def _on_close(self) -> None:
        self._channel = None
        self._emit(ChannelClosed())
