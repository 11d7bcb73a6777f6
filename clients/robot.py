"""A robot's side of OpenPI: observations out, actions in, one at a time.

    async with connect("ws://127.0.0.1:8091") as policy:
        actions = (await policy.infer({"state": state, "image": image}))["actions"]

Works with this server and with OpenPI's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from clients.errors import BadEvent, ClientError, ConnectionLost, Unauthorized, Unreachable
from media.ndarray_msgpack import CodecError, Value, packb, unpackb

PATH: Final = "/v1/realtime/robot/openpi"


class PolicyFailed(ClientError):
    """The policy has none for us, or failed on an observation; the connection is over."""


class RobotPolicyClient:
    """A policy that is connected. Made by `connect`."""

    def __init__(self, socket: ClientConnection, metadata: dict[str, Value]) -> None:
        self._socket = socket
        self.metadata = metadata
        """What the policy says of itself."""

    async def infer(self, observation: Mapping[str, object]) -> dict[str, Value]:
        """The policy's reply: `actions` [horizon, dim], `policy_timing`, `server_timing`.

        Raises PolicyFailed, ConnectionLost, or BadEvent if the server finds the observation invalid
        or what it sends isn't OpenPI. CodecError for an observation that can't be sent.
        """
        return await self._ask(packb(observation))

    async def reset(self) -> None:
        """The next observation is an episode's first. Raises as `infer` does."""
        await self._ask(packb({"endpoint": "reset"}))

    async def _ask(self, message: bytes) -> dict[str, Value]:
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise _lost(error) from error
        reply = await _receive(self._socket)
        if reply.get("type") == "error":
            raise BadEvent(f"the server says: {reply.get('message')!r}")
        return reply


@asynccontextmanager
async def connect(
    url: str, *, api_key: str | None = None, open_timeout_s: float = 30.0
) -> AsyncIterator[RobotPolicyClient]:
    """Connects to the policy at a server's address, with or without a path.

    Raises Unreachable, Unauthorized, PolicyFailed if the server has no policy, or BadEvent.
    """
    headers = {} if api_key is None else {"Authorization": f"Api-Key {api_key}"}
    try:
        socket = await websocket(
            robot_url(url),
            additional_headers=headers,
            compression=None,
            max_size=None,
            open_timeout=open_timeout_s,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        if status in (401, 403):
            raise Unauthorized(f"{url} wants another API key") from error
        raise Unreachable(f"{url} answered with HTTP {status}") from error
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise Unreachable(f"no server at {url}: {error}") from error
    async with socket:
        yield RobotPolicyClient(socket, await _receive(socket))


def robot_url(url: str) -> str:
    """The address of a server's policy. Raises Unreachable for one that is none."""
    scheme, host, path, query, _ = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    if scheme not in ("ws", "wss") or not host:
        raise Unreachable(f"{url!r} is no address of a server, such as ws://host:8091")
    return urlunsplit((scheme, host, path.rstrip("/") or PATH, query, ""))


async def _receive(socket: ClientConnection) -> dict[str, Value]:
    try:
        message = await socket.recv()
    except ConnectionClosed as error:
        raise _lost(error) from error
    if isinstance(message, str):
        raise PolicyFailed(f"the server says: {message}")
    try:
        value = unpackb(message)
    except CodecError as error:
        raise BadEvent(f"the server's message is not OpenPI's: {error}") from error
    if not isinstance(value, dict):
        raise BadEvent("the server's message is not OpenPI's: it is no map")
    return value


def _lost(error: ConnectionClosed) -> ConnectionLost:
    received = error.rcvd
    return ConnectionLost(received.code if received else 1006, received.reason if received else "")
