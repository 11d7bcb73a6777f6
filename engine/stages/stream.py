"""One request, on the event loop: what it has made, and a bounded queue to its reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.api import EngineError
from engine.stages.messages import WINDOW
from engine.stages.values import (
    Finished,
    FunctionCall,
    Made,
    Piece,
    RequestOutput,
    TextPiece,
    TokenLogprob,
    ToolCall,
    ToolCallPiece,
)

_GRANT = WINDOW // 2
"""Pieces are granted in batches: a message for each would cost more than the piece."""


class _Call:
    """A tool call that grows."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class RequestStream:
    """Implements `engine.api.Request`: an iterator that ends with `Finished` or raises once.

    Its queue holds what its runner was granted, so at most WINDOW pieces and the end.
    """

    def __init__(
        self, request: int, *, grant: Callable[[int], None], leave: Callable[[], None]
    ) -> None:
        self.id = request
        self._grant = grant
        self._leave = leave
        self._queue: deque[RequestOutput | EngineError] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._taken = 0
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[TokenLogprob] = []
        self._tokens = 0

    @property
    def waiting(self) -> int:
        """Outputs that nobody has read yet."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        """No more outputs will come; some may still wait to be read."""
        return self._closed

    @property
    def made(self) -> Made:
        """All that has arrived, read or not."""
        return Made(
            text="".join(self._text),
            tool_calls=tuple(
                ToolCall(
                    id=call.id,
                    function=FunctionCall(name=call.name, arguments="".join(call.arguments)),
                )
                for _, call in sorted(self._calls.items())
            ),
            tokens=self._tokens,
            logprobs=tuple(self._logprobs),
        )

    def put(self, piece: Piece) -> None:
        """More has come."""
        match piece:
            case TextPiece(text=text, logprobs=logprobs):
                self._text.append(text)
                self._logprobs += logprobs
            case ToolCallPiece(index=index):
                call = self._calls.setdefault(index, _Call())
                call.id = call.id or piece.id
                call.name = call.name or piece.name
                call.arguments.append(piece.arguments)
        self._tokens += piece.tokens
        self._queue.append(piece)
        self._changed.set()

    def finish(self, last: Finished | EngineError) -> None:
        """The end has come."""
        if not self._closed:
            self._closed = True
            self._queue.append(last)
            self._changed.set()

    def abort(self) -> Made:
        """Gives the request up: its iterator ends. Idempotent."""
        if not self._closed:
            self._closed = True
            self._leave()
        self._queue.clear()
        self._changed.set()
        return self.made

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item = self._queue.popleft()
        if isinstance(item, EngineError):
            raise item
        self._count_taken()
        return item

    def _count_taken(self) -> None:
        self._taken += 1
        if self._taken == _GRANT and not self._closed:
            self._taken = 0
            self._grant(_GRANT)
