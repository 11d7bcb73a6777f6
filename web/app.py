"""The aiohttp application: which route goes where, and what every request passes on its way."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from duplex.config import ServeConfig
from duplex.runtime import Runtime
from engine.api import EngineUnavailable
from web.admission import admit
from web.calls import CALLS, Calls, create_call, hang_up
from web.chat import chat_socket
from web.client_secrets import client_secrets
from web.completions import complete_batch, complete_chat
from web.context import CLIENT, CONTEXT, Context
from web.cors import cors
from web.desk import Desk
from web.errors import ApiError, shape_errors
from web.ice import ice
from web.operators import health, metrics, models, ready, voices
from web.page import static_file
from web.raw import raw_socket
from web.realtime import duplex_socket, realtime_socket
from web.robot import (
    ROBOT_PATH,
    ROBOTS,
    Robots,
    asks_to_upgrade,
    healthz,
    page_or_robot,
    robot_socket,
)
from web.workers.forward import forward
from web.workers.hub import Hub
from web.workers.messages import CLIENT_HEADER
from web.workers.siblings import Siblings

_OPEN = frozenset(("/", "/health", "/healthz", "/ready"))
"""Paths that need no key: the page and its parts, and what load balancers ask."""


def build_app(
    config: ServeConfig,
    runtime: Runtime,
    desk: Desk | None = None,
    siblings: Siblings | None = None,
) -> web.Application:
    """The application over `runtime`, which its owner starts and stops.

    A process that is one of several has a `desk` and `siblings`, to which it passes on what is
    served once.
    """
    # aiohttp's warnings about subprotocols quote them, and with them a browser's key.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    logging.getLogger("aioice").setLevel(logging.WARNING)  # else a line for each candidate
    app = web.Application(middlewares=[cors, shape_errors, guard])
    app[CONTEXT] = Context.of(config, runtime, desk, siblings)
    app[CALLS] = Calls()
    app[ROBOTS] = Robots.of(config) if siblings is None else Robots(None)
    app.on_shutdown.append(_dismiss_robots)
    app.on_cleanup.append(_end_calls)
    app.on_cleanup.append(_stop_policy)
    app.add_routes(
        [
            web.get("/", page_or_robot),
            web.get("/static/{path:.+}", static_file),
            web.get("/health", health),
            web.get("/healthz", healthz),
            web.get("/ready", ready),
            web.get("/metrics", metrics),
            web.get("/v1/models", models),
            web.get("/v1/audio/voices", voices),
            web.post("/v1/chat/completions", forward if siblings else complete_chat),
            web.post("/v1/chat/completions/batch", forward if siblings else complete_batch),
            web.get("/v1/audio/duplex", raw_socket, allow_head=False),
            web.get("/api/chat", chat_socket, allow_head=False),
            web.get("/v1/ice", ice),
            web.post("/v1/realtime/calls", create_call),
            web.post("/v1/realtime/calls/{call_id}/hangup", hang_up),
            web.post("/v1/realtime/client_secrets", client_secrets),
            web.get("/v1/realtime", realtime_socket, allow_head=False),
            web.get("/v1/duplex", duplex_socket, allow_head=False),
            web.get(ROBOT_PATH, robot_socket, allow_head=False),
        ]
    )
    return app


def build_hub_app(context: Context, hub: Hub) -> web.Application:
    """What the hub answers to the workers of its server, which have let their callers in."""
    app = web.Application(middlewares=[shape_errors, _passed_on])
    app[CONTEXT] = context
    app[ROBOTS] = Robots.of(context.config)
    app.on_shutdown.append(_dismiss_robots)
    app.on_cleanup.append(_stop_policy)
    app.add_routes(
        [
            *hub.routes(),
            web.post("/v1/chat/completions", complete_chat),
            web.post("/v1/chat/completions/batch", complete_batch),
            web.get(ROBOT_PATH, robot_socket, allow_head=False),
        ]
    )
    return app


@web.middleware
async def _passed_on(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes who has sent a request, as the worker says that let it in."""
    request[CLIENT] = request.headers.get(CLIENT_HEADER, "")
    return await handler(request)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets in who has a key and comes from an allowed page; counts who is turned away."""
    context = request.app[CONTEXT]
    try:
        if not _is_open(request):
            context.origins.check(request)
            await admit(request)
        return await handler(request)
    except ApiError as error:
        context.counters.refused[error.detail.code] += 1
        raise
    except EngineUnavailable as error:
        context.counters.refused["engine_unavailable"] += 1
        raise ApiError(
            503,
            "engine_unavailable",
            "The model is still loading.",
            type="server_error",
            headers={"Retry-After": "2"},
        ) from error


async def _end_calls(app: web.Application) -> None:
    """The runtime has ended their sessions by now."""
    await app[CALLS].ended()


async def _dismiss_robots(app: web.Application) -> None:
    await app[ROBOTS].dismiss()


async def _stop_policy(app: web.Application) -> None:
    await app[ROBOTS].stop()


def _is_open(request: web.Request) -> bool:
    """Whether a request needs no key: the page's own address is also one for robots."""
    if request.path.startswith("/static/"):
        return True
    return request.path in _OPEN and not asks_to_upgrade(request)
