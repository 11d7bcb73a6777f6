"""The realtime sockets: what is settled before the upgrade, and the session that follows it."""

from __future__ import annotations

import re

from aiohttp import web

from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.session import Mode
from duplex.settings import Settings, Substitution
from duplex.turns import TurnDetection
from duplex.wire.realtime import RealtimeWire, dialect_of
from web.connection import Connection
from web.context import CLIENT, CONTEXT, Context
from web.errors import ApiError
from web.resumable import ResumableConnection
from web.sockets import refuse, upgrade

_SESSION_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


async def realtime_socket(request: web.Request) -> web.StreamResponse:
    """`WS /v1/realtime`: OpenAI's Realtime protocol, or full duplex with `?duplex=1`."""
    autostart = request.query.get("autostart") != "0"
    if request.query.get("duplex") == "1":
        return await _serve(request, Mode.DUPLEX, autostart=autostart)
    return await _serve(request, Mode.TURNS, autostart=True)


async def duplex_socket(request: web.Request) -> web.StreamResponse:
    """`WS /v1/duplex`: a full-duplex session that the client's first event creates."""
    return await _serve(request, Mode.DUPLEX, autostart=False)


async def _serve(request: web.Request, mode: Mode, *, autostart: bool) -> web.StreamResponse:
    context, client = request.app[CONTEXT], request[CLIENT]
    runtime = context.runtime
    with context.connections.hold(client):
        session_id = _session_id(request, context)
        wire = _wire(request, context, session_id, mode)
        socket, transport = await upgrade(request)
        if transport is None:
            return socket
        try:
            session = runtime.create_session(session_id, _settings(context, mode), mode)
        except SessionError as error:
            await refuse(context, socket, wire, error)
            return socket
        asked, served = request.query.get("model"), runtime.spec.model
        if asked and asked != served:
            session.substitutions["model"] = Substitution(
                "model", asked[:200], served, "This server serves one model."
            )
        resumable = mode is Mode.DUPLEX and runtime.resumption.enabled
        kind = ResumableConnection if resumable else Connection
        await kind(context, socket, transport, session, wire, autostart=autostart).run()
    return socket


def _session_id(request: web.Request, context: Context) -> str:
    asked = request.query.get("session_id")
    if not asked:
        return new_id("sess")
    if not _SESSION_ID.fullmatch(asked):
        raise ApiError(
            400,
            "invalid_value",
            "session_id has 1 to 128 letters, digits, dots, dashes and underscores.",
            param="session_id",
        )
    if asked in context.runtime.sessions:
        raise ApiError(409, "session_exists", "This session_id is in use.", param="session_id")
    return asked


def _wire(request: web.Request, context: Context, session_id: str, mode: Mode) -> RealtimeWire:
    try:
        dialect = dialect_of(request.query.get("dialect"), request.headers.get("OpenAI-Beta"))
    except SessionError as error:
        raise ApiError(400, error.code, error.message, param=error.param) from error
    runtime = context.runtime
    capabilities = runtime.capabilities if mode is Mode.DUPLEX else None
    return RealtimeWire(session_id, runtime.spec, capabilities, dialect)


def _settings(context: Context, mode: Mode) -> Settings:
    idle_timeout_s = context.config.idle_timeout_s
    if mode is Mode.DUPLEX:
        return Settings(idle_timeout_s=idle_timeout_s)
    return Settings(
        idle_timeout_s=idle_timeout_s,
        input_clock="server",
        turn_detection=TurnDetection(),
        overlap_policy="barge_in_on_speech",
    )
