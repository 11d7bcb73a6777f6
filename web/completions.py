"""`POST /v1/chat/completions`, whole or streamed, and its batch form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
from aiohttp import web

from duplex.chat import Chat
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.wire.completions import BatchBody, Chunk, ChunkWriter, CompletionBody, completion
from engine.api import EngineError, Request
from engine.stages.values import Finished, Made
from web.bodies import read_json
from web.context import CONTEXT, Context
from web.departure import cancelled_with_caller
from web.errors import ApiError, ErrorBody, ErrorDetail, json_response, refused

_DONE = b"data: [DONE]\n\n"


async def complete_chat(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions`."""
    context = request.app[CONTEXT]
    body = await read_json(request, CompletionBody, int(context.config.max_message_bytes))
    _check(context, body)
    try:
        with cancelled_with_caller(request):
            async with context.runtime.chat.answer(body.request(body.messages)) as answer:
                if body.stream:
                    return await _stream(request, context, body, answer)
                end = await _whole(answer)
    except SessionError as error:
        raise _refused(error) from error
    made = [(answer.made, end)]
    return json_response(completion(new_id("chatcmpl"), int(time.time()), body, made))


async def complete_batch(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions/batch`: all conversations at a time, answered in one."""
    context = request.app[CONTEXT]
    body = await read_json(request, BatchBody, int(context.config.max_message_bytes))
    _check(context, body)
    try:
        with cancelled_with_caller(request):
            made = await _answers(context.runtime.chat, body)
    except SessionError as error:
        raise _refused(error) from error
    return json_response(completion(new_id("chatcmpl"), int(time.time()), body, made))


async def _answers(chat: Chat, body: BatchBody) -> Sequence[tuple[Made, Finished]]:
    """All are admitted before any is waited for: a batch is taken in whole or not."""
    async with AsyncExitStack() as stack:
        answers = [
            await stack.enter_async_context(chat.answer(body.request(messages)))
            for messages in body.messages
        ]
        ends = [await _whole(answer) for answer in answers]
        return [(answer.made, end) for answer, end in zip(answers, ends, strict=True)]


async def _whole(answer: Request) -> Finished:
    async for output in answer:
        if isinstance(output, Finished):
            return output
    raise asyncio.CancelledError  # aborted by someone else than its reader


async def _stream(
    request: web.Request, context: Context, body: CompletionBody, answer: Request
) -> web.StreamResponse:
    """Server-sent events: a chunk each; a failure, too, is one, as the status is sent by then."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    writer = ChunkWriter(new_id("chatcmpl"), int(time.time()), body)
    await response.prepare(request)

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

    await write(_event(writer.begin()))
    try:
        async for output in answer:
            if isinstance(output, Finished):
                for chunk in writer.end(output):
                    await write(_event(chunk))
            else:
                await write(_event(writer.more(output)))
    except EngineError as error:
        await write(_failure(context.runtime.chat.failed(error)))
    else:
        await write(_DONE)
    await response.write_eof()
    return response


def _check(context: Context, body: CompletionBody | BatchBody) -> None:
    served = context.config.chat
    try:
        body.check(None if served is None else served.model)
    except SessionError as error:
        raise _refused(error) from error


def _event(chunk: Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _failure(error: SessionError) -> bytes:
    detail = ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
    return b"data: " + msgspec.json.encode(ErrorBody(detail)) + b"\n\n"


def _refused(error: SessionError) -> ApiError:
    status = {"not_served": 501, "model_not_found": 404}.get(error.code)
    if status is None:
        return refused(error)
    return ApiError(status, error.code, error.message, type=error.type, param=error.param)
