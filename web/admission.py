"""Who sends a request: someone with an API key, or with a client secret made for them."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from web.auth import presented_key, unauthorized
from web.context import CLIENT, CONTEXT, SECRET
from web.errors import ApiError
from web.secrets import PREFIX

_FOR_SECRETS: Final = re.compile(
    r"/v1/(realtime|duplex|ice|models|audio/voices|realtime/calls(/[^/]+/hangup)?)"
)
"""What a page needs for a conversation. To make more secrets is not part of it."""


async def admit(request: web.Request) -> None:
    """Notes the request's client, and its secret if it has one. Raises ApiError 401 or 403."""
    context = request.app[CONTEXT]
    key = presented_key(request)
    if key is None or not key.startswith(PREFIX):
        request[CLIENT] = context.keys.client(request)
        return
    secret = await context.desk.find_secret(key)
    if secret is None:
        raise unauthorized("This client secret is not known here, or it has expired.")
    if not _FOR_SECRETS.fullmatch(request.path):
        raise ApiError(403, "not_permitted", f"A client secret does not open {request.path}.")
    request[CLIENT], request[SECRET] = secret.client, secret
