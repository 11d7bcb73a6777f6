"""Messages of a WebSocket that end here, passed on to another process's and back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Literal

import aiohttp
from aiohttp import ClientConnectionError, WSMsgType

from web.websocket import Socket

Theirs = aiohttp.ClientWebSocketResponse[Literal[False]]

_ABNORMAL: Final = (None, aiohttp.WSCloseCode.ABNORMAL_CLOSURE)


async def relay(ours: Socket, theirs: Theirs) -> int | None:
    """Passes messages both ways, each waiting until the other takes them, until a socket closes.

    Returns the code to close `ours` with; None if the other process broke off, or our client did:
    then `theirs` isn't closed but for the owner to break.
    """
    up = asyncio.create_task(_pass(theirs, ours))
    down = asyncio.create_task(_pass(ours, theirs))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            code = theirs.close_code
            return None if code in _ABNORMAL else code
        if ours.close_code not in _ABNORMAL:
            await theirs.close(code=ours.close_code or aiohttp.WSCloseCode.OK)
            return ours.close_code
        return None
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait({up, down})


async def _pass(source: Socket | Theirs, sink: Socket | Theirs) -> None:
    """Returns when either is closed."""
    with suppress(ClientConnectionError, ConnectionError):
        while True:
            message = await source.receive()
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    await sink.send_frame(message.data, message.type)
                case _:
                    return
