"""HTTP errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from duplex.errors import ErrorType, SessionError

logger = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    type: ErrorType
    param: str | None = None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error's answer."""

    error: ErrorDetail


class ApiError(Exception):
    """An HTTP request that is refused with `status`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: ErrorType = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        # Bytes of a header that are no text must not break the answer that quotes it.
        message = message.encode(errors="replace").decode()
        self.status = status
        self.detail = ErrorDetail(message=message, type=type, param=param, code=code)
        self.headers = headers

    def response(self) -> web.Response:
        """The answer that says so."""
        return web.Response(
            status=self.status,
            body=msgspec.json.encode(ErrorBody(self.detail)),
            content_type="application/json",
            headers=self.headers,
        )


@web.middleware
async def shape_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every failed request in one shape; what broke on our side is logged, not told."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kept = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        message = f"{request.method} {request.path}: {error.reason}"
        code = error.reason.lower().replace(" ", "_")
        return ApiError(error.status, code, message, headers=kept).response()
    except Exception as error:
        gone = request.transport is None or request.transport.is_closing()
        if gone and isinstance(error, ConnectionError):
            return ApiError(400, "disconnected", "The client has left.").response()  # for nobody
        logger.exception("%s %s failed", request.method, request.path)
        return ApiError(
            500, "internal_error", "The server had an internal error.", type="server_error"
        ).response()


def refused(error: SessionError) -> ApiError:
    """A session's error as the answer to the request that asked for the session."""
    status, headers = 400, None
    if error.code == "resource_exhausted":
        status, headers = 429, {"Retry-After": "5"}
    elif error.type == "server_error":
        status, headers = 503, {"Retry-After": "5"}
    return ApiError(
        status, error.code, error.message, type=error.type, param=error.param, headers=headers
    )


def json_response(body: msgspec.Struct, status: int = 200) -> web.Response:
    """A value as the answer."""
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
