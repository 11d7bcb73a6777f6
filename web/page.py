"""The page: files that the browser takes as they are, from this server and no other."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

_ROOT: Final = Path(__file__).resolve().parent / "static"

_KINDS: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""What files the page has; the system's own table of types may say otherwise."""

_HEADERS: Final = {
    hdrs.CACHE_CONTROL: "no-cache",  # kept, but asked for: a new version shows at once
    hdrs.CONTENT_SECURITY_POLICY: "default-src 'self'; img-src 'self' data:; "
    "connect-src 'self' ws: wss:; media-src 'self' blob: mediastream:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    hdrs.X_CONTENT_TYPE_OPTIONS: "nosniff",
    hdrs.REFERRER_POLICY: "no-referrer",
}


async def page(request: web.Request) -> web.Response:
    """`GET /`: where people talk to the model."""
    return _file(request, "index.html")


async def static_file(request: web.Request) -> web.Response:
    """`GET /static/{path}`: a part of the page. Raises HTTPNotFound."""
    return _file(request, request.match_info["path"])


def _file(request: web.Request, path: str) -> web.Response:
    if "\0" in path:
        raise web.HTTPNotFound
    file = (_ROOT / path).resolve()
    kind = _KINDS.get(file.suffix)
    if kind is None or not file.is_relative_to(_ROOT) or not file.is_file():
        raise web.HTTPNotFound
    content = file.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = _HEADERS | {hdrs.ETAG: tag}
    if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)
