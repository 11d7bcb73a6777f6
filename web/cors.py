"""Pages of other origins: which of them may read our answers."""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from web.context import CONTEXT
from web.errors import ApiError

_PREFLIGHT: Final = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, OPTIONS",
    hdrs.ACCESS_CONTROL_MAX_AGE: "600",
}
_HEADERS: Final = "Authorization, Content-Type"


@web.middleware
async def cors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a browser's question before a request, and marks what an allowed page may read."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None:
        return await handler(request)
    try:
        request.app[CONTEXT].origins.check(request)
    except ApiError:
        return await handler(request)  # is refused there, and counted
    asks_first = hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    if request.method == hdrs.METH_OPTIONS and asks_first:
        # SDKs name themselves in headers of their own; none of them does any harm here.
        asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
        allowed = f"{_HEADERS}, {asked}" if asked else _HEADERS
        response: web.StreamResponse = web.Response(
            status=204, headers=_PREFLIGHT | {hdrs.ACCESS_CONTROL_ALLOW_HEADERS: allowed}
        )
    else:
        response = await handler(request)
    if not response.prepared:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = hdrs.LOCATION
        response.headers[hdrs.VARY] = hdrs.ORIGIN
    return response
