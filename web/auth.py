"""Who may come in: API keys, and the origins of browsers' pages."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from aiohttp import hdrs, web

from web.errors import ApiError

SUBPROTOCOL = "realtime"
"""The only WebSocket subprotocol that is ever selected."""

_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_SCHEMES = ("bearer", "api-key")
"""The second is what OpenPI's clients say."""


class Keys:
    """The API keys in force; none means that everyone may come in. Only digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def client(self, request: web.Request) -> str:
        """Names the client of a request: its key's digest or, without keys, its address.

        Raises ApiError 401 for a key that is missing or wrong. Takes the same time for every
        wrong key.
        """
        if not self._digests:
            return request.remote or "unknown"
        key = presented_key(request)
        if key is None:
            raise unauthorized(
                "No API key was given. Send it as `Authorization: Bearer KEY`, or from a browser "
                "as WebSocket subprotocol `openai-insecure-api-key.KEY`."
            )
        digest = _digest(key)
        known = False
        for candidate in self._digests:
            known |= hmac.compare_digest(candidate, digest)
        if not known:
            raise unauthorized("This API key is not known here.")
        return digest.hex()[:16]


def presented_key(request: web.Request) -> str | None:
    """The key that a request shows, in its header or among its subprotocols."""
    scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() in _SCHEMES and key.strip():
        return key.strip()
    for offered in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","):
        if offered.strip().startswith(_KEY_SUBPROTOCOL):
            return offered.strip().removeprefix(_KEY_SUBPROTOCOL)
    return None


class Origins:
    """The pages that may connect: those allowed by name, and our own.

    Our own is known by a loopback address on our own port; `by_any_name` also by whatever name
    the browser has for this server. That is for servers with keys only: without them a foreign
    page whose name is made to lead to this machine (DNS rebinding) would pass for ours.
    """

    def __init__(self, allowed: Iterable[str], *, by_any_name: bool = False) -> None:
        self._allowed = frozenset(allowed)
        self._by_any_name = by_any_name

    def check(self, request: web.Request) -> None:
        """Raises ApiError 403 for a page of another origin. Only browsers name an origin."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin.lower() in self._allowed:
            return
        if request.transport is not None:
            port = request.transport.get_extra_info("sockname")[1]
            if origin.lower() in _loopback_origins(port):
                return
        if self._by_any_name and origin.lower().partition("://")[2] == request.host.lower():
            return
        message = f"Pages of {origin} may not use this server"
        if origin.startswith("http"):
            message += f"; --allow-origin {origin} permits it"
        raise ApiError(403, "origin_not_allowed", f"{message}.", param="Origin")


def _loopback_origins(port: int) -> set[str]:
    hosts = ("localhost", "127.0.0.1", "[::1]")
    origins = {f"{scheme}://{host}:{port}" for scheme in ("http", "https") for host in hosts}
    if port == 80:
        origins |= {f"http://{host}" for host in hosts}
    if port == 443:
        origins |= {f"https://{host}" for host in hosts}
    return origins


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def unauthorized(message: str) -> ApiError:
    """The error for a key that is missing or wrong."""
    return ApiError(401, "invalid_api_key", message, headers={hdrs.WWW_AUTHENTICATE: "Bearer"})
