"""How a realtime session begins, whatever carries it: its id, its wire, its first settings."""

from __future__ import annotations

import re

from aiohttp import web
from msgspec.structs import replace

from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.session import Mode, Session
from duplex.settings import Capabilities, Settings, Substitution
from duplex.turns import TurnDetection
from duplex.wire.realtime import RealtimeWire, dialect_of
from web.context import CONTEXT, SECRET
from web.errors import ApiError

_SESSION_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


async def session_id_of(request: web.Request) -> str:
    """The id that the client asks for, or a new one. Raises ApiError 400 or 409."""
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
    context = request.app[CONTEXT]
    if asked in context.runtime.sessions or (
        context.siblings is not None and await context.siblings.have_session(asked)
    ):
        raise ApiError(409, "session_exists", "This session_id is in use.", param="session_id")
    return asked


def wire_for(
    request: web.Request, session_id: str, mode: Mode, *, resumable: bool = False
) -> RealtimeWire:
    """The protocol that the client speaks. Raises ApiError 400 for an unknown dialect."""
    try:
        dialect = dialect_of(request.query.get("dialect"), request.headers.get("OpenAI-Beta"))
    except SessionError as error:
        raise ApiError(400, error.code, error.message, param=error.param) from error
    spec = request.app[CONTEXT].runtime.spec
    capabilities = Capabilities.of(spec, resume=resumable) if mode is Mode.DUPLEX else None
    return RealtimeWire(session_id, spec, capabilities, dialect)


def create_session(
    request: web.Request, session_id: str, mode: Mode, *, paced: bool = False
) -> Session:
    """A session without a slot, with the settings of its mode and of the client's secret.

    `paced` as in `Session`. Raises SessionError while the server drains.
    """
    context, secret = request.app[CONTEXT], request.get(SECRET)
    settings = _settings(mode, context.config.idle_timeout_s)
    if secret is not None:
        settings = settings.patched(secret.patch)
        most = context.config.idle_timeout_s
        settings = replace(settings, idle_timeout_s=min(settings.idle_timeout_s or most, most))
    if paced:
        # What the transport has sent it has sent in time, and it says what it has taken back.
        settings = replace(
            settings, input_clock="server", playback_commit_policy="commit_all_on_done"
        )
    session = context.runtime.create_session(session_id, settings, mode, paced=paced)
    for substitution in secret.substitutions if secret is not None else ():
        session.substitutions[substitution.field] = substitution
    asked, served = request.query.get("model"), context.runtime.spec.model
    if asked and asked != served:
        session.substitutions["model"] = Substitution(
            "model", asked[:200], served, "This server serves one model."
        )
    return session


def _settings(mode: Mode, idle_timeout_s: float) -> Settings:
    if mode is Mode.DUPLEX:
        return Settings(idle_timeout_s=idle_timeout_s)
    return Settings(
        idle_timeout_s=idle_timeout_s,
        input_clock="server",
        turn_detection=TurnDetection(),
        playback_commit_policy="commit_all_on_done",  # these clients acknowledge nothing
        overlap_policy="barge_in_on_speech",
    )
