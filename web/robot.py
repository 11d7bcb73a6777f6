"""`WS /v1/realtime/robot/openpi` and `WS /`: robots that ask a policy over OpenPI.

The policy's metadata goes first; then each observation gets one reply. What is read and written
here stays packed: the policy's process does all that takes time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import msgspec
from aiohttp import ClientConnectionError, WSCloseCode, WSMsgType, hdrs, web

from duplex.config import ServeConfig
from duplex.robot.pipe import Kind, Message
from duplex.robot.process import Link, RobotPolicy
from duplex.robot.replies import INTERNAL_ERROR, INVALID
from duplex.robot.session import MAX_REQUEST_BYTES
from engine.api import EngineLost, EngineUnavailable
from web.context import CLIENT, CONTEXT, Context
from web.limits import WriteDeadline
from web.page import page
from web.sockets import upgrade
from web.websocket import CLOSE_S, Socket
from web.workers.forward import forward_socket

logger = logging.getLogger(__name__)

ROBOT_PATH: Final = "/v1/realtime/robot/openpi"

_NOT_AVAILABLE: Final = msgspec.json.encode(
    {"type": "error", "error": "Robot policy not available", "code": "unsupported"}
)


class Received(NamedTuple):
    """A robot's message."""

    data: bytes
    binary: bool
    arrived: float


class Robots:
    """The policy, if there is one, and the robots that are connected."""

    def __init__(self, policy: RobotPolicy | None) -> None:
        self.policy = policy
        self._sockets: set[Socket] = set()
        self._none = asyncio.Event()
        self._none.set()
        self._draining = False

    @classmethod
    def of(cls, config: ServeConfig) -> Robots:
        """For the policy that `config` names, if it names one."""
        if config.policy is None:
            return cls(None)
        return cls(RobotPolicy(config.policy, config.policy_options, config.policy_python))

    async def start(self) -> None:
        """Loads the policy. Raises EngineError if it can't be."""
        if self.policy is not None:
            await self.policy.start()

    async def drain(self, timeout_s: float) -> None:
        """Refuses new robots, and waits for those that are connected to leave."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none.wait()

    async def dismiss(self) -> None:
        """Closes all connections: their robots may come again."""
        self._draining = True
        await asyncio.gather(
            *(socket.close(code=WSCloseCode.SERVICE_RESTART) for socket in set(self._sockets))
        )

    async def stop(self) -> None:
        """Ends the policy; idempotent."""
        if self.policy is not None:
            await self.policy.stop()

    def connect(self) -> Link | None:
        """A robot's place at the policy, or None if there is none now."""
        if self.policy is None or self._draining:
            return None
        try:
            return self.policy.connect()
        except EngineUnavailable:
            return None

    def enter(self, socket: Socket) -> None:
        """A robot is connected."""
        self._sockets.add(socket)
        self._none.clear()

    def leave(self, socket: Socket) -> None:
        """It isn't any more."""
        self._sockets.discard(socket)
        if not self._sockets:
            self._none.set()


ROBOTS = web.AppKey("robots", Robots)


async def healthz(_: web.Request) -> web.Response:
    """`GET /healthz`: what OpenPI's servers answer."""
    return web.Response(text="OK")


async def page_or_robot(request: web.Request) -> web.StreamResponse:
    """`GET /`: the page, or a robot when it asks to upgrade."""
    return await (robot_socket if asks_to_upgrade(request) else page)(request)


def asks_to_upgrade(request: web.Request) -> bool:
    """Whether a request is for a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


async def robot_socket(request: web.Request) -> web.StreamResponse:
    """One robot, until it leaves, its policy fails or it is silent for `robot_idle_timeout_s`."""
    context, robots = request.app[CONTEXT], request.app[ROBOTS]
    if context.siblings is not None:
        return await forward_socket(request, ROBOT_PATH, MAX_REQUEST_BYTES + 1)
    with await context.desk.hold(request[CLIENT]):
        # aiohttp refuses what reaches its limit, not only what exceeds it
        socket, transport = await upgrade(request, max_bytes=MAX_REQUEST_BYTES + 1)
        if transport is None:
            return socket
        link = robots.connect()
        if link is None:
            context.counters.refused["robot_policy_unavailable"] += 1
            await socket.send_frame(_NOT_AVAILABLE, WSMsgType.TEXT)
            later = robots.policy is not None
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER if later else WSCloseCode.OK)
            return socket
        robots.enter(socket)
        try:
            await RobotConnection(context, socket, transport, link).run()
        finally:
            robots.leave(socket)
            link.leave()
    return socket


class RobotConnection:
    """Carries the messages of one robot, strictly one at a time.

    The next message is received while the policy thinks, so that a robot that leaves then is
    noticed; it is looked at only when the one before is answered.
    """

    def __init__(
        self,
        context: Context,
        socket: Socket,
        transport: asyncio.Transport,
        link: Link,
    ) -> None:
        self._counters = context.counters
        self._clock = context.runtime.clock
        self._idle_s = context.config.robot_idle_timeout_s
        self._socket = socket
        self._transport = transport
        self._link = link
        self._prev_total_ms: float | None = None
        self._deadline = WriteDeadline(context.config.write_timeout_s, self._stalled)

    async def run(self) -> None:
        """Returns when the socket is closed."""
        code = WSCloseCode.OK
        try:
            await self._send(self._link.metadata, WSMsgType.BINARY)
            code = await self._converse()
        except ClientConnectionError:
            logger.debug("robot %d left while it was told something", self._link.connection)
        finally:
            self._deadline.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._socket.close(code=code)
        if self._transport.get_write_buffer_size():
            self._transport.abort()

    async def _converse(self) -> WSCloseCode:
        """Answers messages until the end; returns what to close with."""
        receiving = self._receive()
        try:
            while (await asyncio.wait({receiving}, timeout=self._idle_s))[0]:
                message = receiving.result()
                if message is None:
                    break
                receiving = self._receive()
                answer, arrived = await self._ask(message, receiving), message.arrived
                del message  # as large as its observation
                if answer is None:
                    break
                if not await self._tell(answer, arrived):
                    return WSCloseCode.INTERNAL_ERROR
            return WSCloseCode.OK
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})

    async def _ask(
        self, message: Received, receiving: asyncio.Task[Received | None]
    ) -> Message | None:
        """The policy's answer; None if the robot leaves before it is there."""
        if not message.binary:
            return Message(Kind.INVALID, payload=b"a text message")
        asking = asyncio.create_task(
            self._link.ask(message.data, message.arrived, self._prev_total_ms)
        )
        try:
            await asyncio.wait({asking, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and receiving.result() is None:
                return None
            return await asking
        except EngineLost:
            return Message(Kind.FAILED, payload=INTERNAL_ERROR.encode())
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    async def _tell(self, answer: Message, arrived: float) -> bool:
        """Sends what the robot gets; False if its connection is to close."""
        self._counters.robot_requests[answer.kind.name.lower()] += 1
        match answer.kind:
            case Kind.FAILED:
                await self._send(answer.payload, WSMsgType.TEXT)
                return False
            case Kind.INVALID:
                reason = answer.payload.decode()
                logger.info("robot %d: invalid request: %s", self._link.connection, reason)
                await self._send(INVALID, WSMsgType.BINARY)
            case _:
                await self._send(answer.payload, WSMsgType.BINARY)
                self._prev_total_ms = 1e3 * (self._clock.now() - arrived)
        return True

    def _receive(self) -> asyncio.Task[Received | None]:
        return asyncio.create_task(self._receive_one())

    async def _receive_one(self) -> Received | None:
        """The next message; None when the robot has left."""
        message = await self._socket.receive()
        if message.type is not WSMsgType.BINARY and message.type is not WSMsgType.TEXT:
            return None
        self._counters.messages_in += 1
        self._counters.bytes_in += len(message.data)
        return Received(message.data, message.type is WSMsgType.BINARY, self._clock.now())

    async def _send(
        self, data: bytes | bytearray, kind: Literal[WSMsgType.TEXT, WSMsgType.BINARY]
    ) -> None:
        self._deadline.begin()
        await self._socket.send_frame(bytes(data), kind)
        self._deadline.end()
        self._counters.messages_out += 1
        self._counters.bytes_out += len(data)

    def _stalled(self) -> None:
        self._counters.stalled_writes += 1
        self._transport.abort()
