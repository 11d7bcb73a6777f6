"""A client's WebSocket: all that it sends counts, pings too, and is read no faster than allowed."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Literal

from aiohttp import ClientConnectionError, WSMsgType, web
from aiohttp.http import WSMessageNoDecodeText

from web.auth import SUBPROTOCOL
from web.context import Context
from web.message_rate import MessageRate

CLOSE_S: Final = 2.0
"""How long a client may take to answer a close."""


class Socket(web.WebSocketResponse[Literal[False]]):
    """A WebSocket whose text arrives as bytes. Pings are answered while somebody receives."""

    def __init__(self, context: Context, *, max_bytes: int | None = None) -> None:
        """`max_bytes` of one message, if it isn't the configuration's: for a route of large
        messages, each of which counts once.
        """
        config = context.config
        super().__init__(
            protocols=(SUBPROTOCOL,),
            autoping=False,  # aiohttp's own answers are not counted
            compress=False,  # deflate costs more than the whole rest of a frame's way
            decode_text=False,
            heartbeat=config.heartbeat_s,
            max_msg_size=int(config.max_message_bytes) if max_bytes is None else max_bytes,
            timeout=CLOSE_S,
        )
        self._rate = MessageRate(context)
        self._by_size = max_bytes is None

    async def receive(self, timeout: float | None = None) -> WSMessageNoDecodeText:
        """The next message, when the message rate allows one; the type tells of the end."""
        while True:
            message = await super().receive(timeout)
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    await self._rate.take(len(message.data) if self._by_size else 0)
                    return message
                case WSMsgType.PING:
                    await self._rate.take()
                    with suppress(ClientConnectionError):  # what follows tells that it is gone
                        await self.pong(message.data)
                case WSMsgType.PONG:
                    await self._rate.take()
                case _:
                    return message
