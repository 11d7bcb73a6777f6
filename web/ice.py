"""ICE servers, for callers and for the server's own end: with credentials that are fresh.

A TURN server that shares a secret with us takes as user name the time at which it expires, and as
password the name's HMAC under the secret (draft-uberti-behave-turn-rest-00, section 2.2). So a
page never sees anything that is worth keeping.
"""

from __future__ import annotations

import base64
import hmac
import time
from typing import Final

import msgspec
from aiohttp import hdrs, web

from duplex.config import IceServerConfig
from media.rtc.settings import IceServer
from web.context import CONTEXT
from web.errors import json_response

_USER: Final = "duplex"
"""After the time, in a user name: what the TURN server's log shows."""


class IceServerCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ICE server as the W3C's RTCIceServer."""

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


class IceServers(msgspec.Struct, frozen=True, rename="camel"):
    """What a page gives its RTCPeerConnection."""

    ice_servers: tuple[IceServerCard, ...]


async def ice(request: web.Request) -> web.Response:
    """`GET /v1/ice`: the ICE servers that callers of this server should use."""
    servers = (ice_server(server) for server in request.app[CONTEXT].config.ice_servers)
    cards = (IceServerCard(s.urls, s.username, s.credential) for s in servers)
    answer = json_response(IceServers(tuple(cards)))
    answer.headers[hdrs.CACHE_CONTROL] = "no-store"
    return answer


def ice_server(config: IceServerConfig) -> IceServer:
    """The server with its credentials, made now if it has a secret."""
    if config.secret is not None:
        username = f"{int(time.time() + config.ttl_s)}:{_USER}"
        digest = hmac.digest(config.secret.get_secret_value().encode(), username.encode(), "sha1")
        return IceServer(config.urls, username, base64.b64encode(digest).decode())
    credential = None if config.credential is None else config.credential.get_secret_value()
    return IceServer(config.urls, config.username, credential)
