"""Bodies of requests, read up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import BodyPartReader, hdrs, web

from duplex.errors import SessionError
from duplex.wire.bounds import check_items
from web.errors import ApiError

T = TypeVar("T")

BODY_S = 30.0
"""How long a body may be on its way."""


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises ApiError: 413 above `limit` bytes, 408 if it takes `BODY_S`."""
    body = bytearray()
    async with in_time():
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise too_large("The body", limit)
    return bytes(body)


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Raises ApiError 408 if a body that is read within takes `BODY_S`."""
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError as error:
        message = f"The body has not come within {BODY_S:g} seconds."
        raise ApiError(
            408, "request_timeout", message, headers={hdrs.CONNECTION: "close"}
        ) from error


async def read_part(part: BodyPartReader, limit: int) -> bytes:
    """A part of a multipart body, decoded. Raises ApiError 413 above `limit` bytes."""
    body = bytearray()
    while chunk := await part.read_chunk():
        body += chunk
        if len(body) > limit:
            raise too_large(f"The part {part.name!r}", limit)
    return part.decode(bytes(body))


async def read_json(request: web.Request, kind: type[T], limit: int) -> T:
    """The body as a value; an empty body is an empty object. Raises ApiError, naming the field."""
    return decode_json(await read_body(request, limit) or b"{}", kind)


def decode_json(body: bytes, kind: type[T], param: str | None = None) -> T:
    """JSON as a value. Raises ApiError 400 naming the field, within `param` if that is given."""
    try:
        check_items(body)
        return msgspec.json.decode(body, type=kind)
    except SessionError as error:
        raise ApiError(400, error.code, error.message, param=param) from error
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = where.removesuffix("`").lstrip(".")
        path = ".".join(part for part in (param, field) if part) or None
        raise ApiError(400, "invalid_value", f"{what}.", param=path) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"This is not JSON: {error}.", param=param) from error


def too_large(what: str, limit: int) -> ApiError:
    """The error for more than `limit` bytes."""
    return ApiError(413, "request_too_large", f"{what} is larger than {limit} bytes.")
