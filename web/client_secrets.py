"""Where client secrets are made: by someone with a real key, for a page that must not see it."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.settings import EncodedAudio, Settings
from duplex.wire.session_reader import read_session
from duplex.wire.session_writer import write_session
from web.bodies import read_json
from web.context import CLIENT, CONTEXT
from web.errors import ApiError, json_response, refused

MAX_BODY: Final = 64 << 10
"""Bytes of a request, and so of the settings that a secret holds."""


class ExpiresAfter(msgspec.Struct, frozen=True):
    """How long a secret is in force, in seconds from its making."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200)] = 600


class SecretRequest(msgspec.Struct, frozen=True):
    """The body of a request for a secret. `session` is a session object of either shape."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, object] = {}


class SecretAnswer(msgspec.Struct, frozen=True):
    """A secret, the Unix time when it expires, and the session that it opens."""

    value: str
    expires_at: int
    session: dict[str, object]


async def client_secrets(request: web.Request) -> web.Response:
    """`POST /v1/realtime/client_secrets`: a key that expires, and the settings it begins with."""
    context = request.app[CONTEXT]
    runtime, asked = context.runtime, await read_json(request, SecretRequest, MAX_BODY)
    try:
        patch, substitutions = read_session(asked.session, runtime.spec)
    except SessionError as error:
        raise refused(error) from error
    if isinstance(patch.voice_audio, EncodedAudio):
        raise ApiError(
            400,
            "invalid_value",
            "A client secret carries no recording; send it with the session itself.",
            param=patch.voice_audio.param,
        )
    seconds = asked.expires_after.seconds
    value = await context.desk.make_secret(request[CLIENT], seconds, patch, substitutions)
    session = write_session(
        new_id("sess"), Settings().patched(patch), substitutions, runtime.spec, None, dialect="ga"
    )
    return json_response(SecretAnswer(value, int(time.time()) + seconds, session))
