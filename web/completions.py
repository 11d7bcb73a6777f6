"""`POST /v1/chat/completions`, whole or streamed, and its batch form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar

import msgspec
from aiohttp import web

from duplex.chat import merged
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.wire.completions import BatchBody, Chunk, ChunkWriter, CompletionBody, completion
from engine.api import EngineError, Request
from engine.stages.values import Finished, RequestOutput
from web.bodies import read_json
from web.context import CONTEXT
from web.departure import cancelled_with_caller
from web.errors import ApiError, ErrorBody, ErrorDetail, json_response, refused

B = TypeVar("B", CompletionBody, BatchBody)

_DONE = b"data: [DONE]\n\n"


async def complete_chat(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions`."""
    body = await read_json(request, CompletionBody, _limit(request))
    return await _complete(request, body, _stream if body.stream else _whole)


async def complete_batch(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions/batch`: all conversations at a time, answered in one."""
    body = await read_json(request, BatchBody, _limit(request))
    return await _complete(request, body, _whole)


async def _complete(
    request: web.Request,
    body: B,
    respond: Callable[[web.Request, B, Sequence[Request]], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """All requests of a body are admitted before any is waited for: it is taken in whole or not."""
    context = request.app[CONTEXT]
    served = context.config.chat
    try:
        body.check(None if served is None else served.model)
        with cancelled_with_caller(request):
            async with AsyncExitStack() as stack:
                answers = [
                    await stack.enter_async_context(context.runtime.chat.answer(each))
                    for each in body.requests
                ]
                return await respond(request, body, answers)
    except SessionError as error:
        raise _refused(error) from error


async def _whole(
    request: web.Request, body: CompletionBody | BatchBody, answers: Sequence[Request]
) -> web.StreamResponse:
    ends = [await _end(answer) for answer in answers]
    made = [(answer.made, end) for answer, end in zip(answers, ends, strict=True)]
    return json_response(completion(new_id("chatcmpl"), int(time.time()), body, made))


async def _stream(
    request: web.Request, body: CompletionBody, answers: Sequence[Request]
) -> web.StreamResponse:
    """Server-sent events, a chunk each. What fails before the first piece has a status of its own,
    as whole answers have; what fails later is an event.
    """
    context = request.app[CONTEXT]
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    writer = ChunkWriter(new_id("chatcmpl"), int(time.time()), body)

    async def write(data: bytes) -> None:
        try:
            async with asyncio.timeout(context.config.write_timeout_s):
                await response.write(data)
        except TimeoutError:
            context.counters.stalled_writes += 1
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None
        except ConnectionError:  # it has just hung up: our cancellation is on its way
            raise asyncio.CancelledError from None

    async def tell(index: int, output: RequestOutput) -> None:
        if isinstance(output, Finished):
            for chunk in writer.end(index, output):
                await write(_event(chunk))
        else:
            await write(_event(writer.more(index, output)))

    async with aclosing(merged(answers)) as outputs:
        first = await anext(outputs)
        await response.prepare(request)
        for chunk in writer.begin():
            await write(_event(chunk))
        await tell(*first)
        try:
            async for index, output in outputs:
                await tell(index, output)
        except EngineError as error:
            await write(_failure(context.runtime.chat.failed(error)))
        else:
            await write(_DONE)
    await response.write_eof()
    return response


async def _end(answer: Request) -> Finished:
    async for output in answer:
        if isinstance(output, Finished):
            return output
    raise asyncio.CancelledError  # aborted by someone else than its reader


def _limit(request: web.Request) -> int:
    return int(request.app[CONTEXT].config.max_message_bytes)


def _event(chunk: Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _failure(error: SessionError) -> bytes:
    detail = ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
    return b"data: " + msgspec.json.encode(ErrorBody(detail)) + b"\n\n"


def _refused(error: SessionError) -> ApiError:
    status = {"not_served": 501, "model_not_found": 404, "internal_error": 500}.get(error.code)
    if status is None:
        return refused(error)
    return ApiError(status, error.code, error.message, type=error.type, param=error.param)
