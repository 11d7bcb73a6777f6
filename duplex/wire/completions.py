"""OpenAI's Chat Completions: bodies in, answers and chunks out; no I/O.

Judge: the PyPI package `openai`. The batch form is vLLM's: `messages` is a list of conversations,
and the answer has a choice for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from duplex.errors import SessionError
from engine.stages.values import (
    ChatMessage,
    ChatRequest,
    Finished,
    Made,
    Positive,
    Reason,
    StageMetrics,
    TextPiece,
    ToolCall,
    ToolCallPiece,
)

MAX_BATCH = 64
"""Conversations in one request."""


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream adds at its end."""

    include_usage: bool = False


class _Common(ChatRequest, frozen=True, kw_only=True):
    """What both bodies have beside the request itself. Other fields have no effect here."""

    model: str
    max_completion_tokens: Positive | None = None
    n: int | None = None
    logprobs: bool | None = None
    audio: object = None
    stream: bool | None = None
    return_stage_metrics: bool = False
    """An extension: the answer carries the times of its stages."""

    def check(self, model: str | None) -> None:
        """Raises SessionError for what isn't done here."""
        if model is not None and self.model != model:
            raise SessionError(
                "model_not_found", f"There is no model {self.model!r} here.", param="model"
            )
        if self.n not in (None, 1):
            raise SessionError("invalid_value", "Only one choice is made.", param="n")
        if self.logprobs:
            raise SessionError(
                "invalid_value", "Log probabilities are not given.", param="logprobs"
            )
        if self.audio is not None:
            raise SessionError("invalid_value", "Answers are text.", param="audio")

    def request(self, messages: tuple[ChatMessage, ...]) -> ChatRequest:
        """A conversation of this body's, as stages take it."""
        fields = {name: getattr(self, name) for name in ChatRequest.__struct_fields__}
        limit = self.max_completion_tokens or self.max_tokens
        return ChatRequest(**(fields | {"messages": messages, "max_tokens": limit}))


class CompletionBody(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    stream_options: StreamOptions | None = None


class BatchBody(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions/batch`."""

    messages: Annotated[  # type: ignore[assignment]
        tuple[Annotated[tuple[ChatMessage, ...], msgspec.Meta(min_length=1)], ...],
        msgspec.Meta(min_length=1, max_length=MAX_BATCH),
    ]

    def check(self, model: str | None) -> None:
        """Raises SessionError for what isn't done here."""
        super().check(model)
        if self.stream:
            raise SessionError("invalid_value", "A batch is not streamed.", param="stream")
        if self.tools:
            raise SessionError("invalid_value", "A batch has no tools.", param="tools")


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: tuple[ToolCall, ...] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: Answer
    logprobs: None = None
    finish_reason: Reason


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one for each conversation of a batch."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | None
    stage_metrics: tuple[StageMetrics, ...] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """More of a call."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of a tool's call."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of a message."""

    role: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """More of an answer."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: Reason | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    stage_metrics: tuple[StageMetrics, ...] | msgspec.UnsetType = msgspec.UNSET


def usage_of(ends: Sequence[Finished]) -> Usage | None:
    """The tokens of all; None if they are not known of each."""
    prompt = [finished.end.prompt_tokens for finished in ends]
    output = [finished.end.output_tokens for finished in ends]
    if None in prompt or None in output:
        return None
    made, given = sum(n or 0 for n in output), sum(n or 0 for n in prompt)
    return Usage(given, made, given + made)


def completion(
    id: str, created: int, body: CompletionBody | BatchBody, ends: Sequence[tuple[Made, Finished]]
) -> Completion:
    """The answer to a body: a choice for each conversation, in their order."""
    finished = [end for _, end in ends]
    metrics = tuple(times for end in finished for times in end.metrics)
    return Completion(
        id=id,
        created=created,
        model=body.model,
        choices=tuple(
            Choice(
                index=index,
                message=Answer(
                    content=made.text or (None if made.tool_calls else ""),
                    tool_calls=made.tool_calls or msgspec.UNSET,
                ),
                finish_reason=end.end.reason,
            )
            for index, (made, end) in enumerate(ends)
        ),
        usage=usage_of(finished),
        stage_metrics=metrics if body.return_stage_metrics else msgspec.UNSET,
    )


class ChunkWriter:
    """Renders one streamed answer."""

    def __init__(self, id: str, created: int, body: CompletionBody) -> None:
        self._id = id
        self._created = created
        self._model = body.model
        self._metrics = body.return_stage_metrics
        self._usage = body.stream_options is not None and body.stream_options.include_usage

    def begin(self) -> Chunk:
        """The first chunk: who speaks."""
        return self._chunk(Delta(role="assistant", content=""))

    def more(self, piece: TextPiece | ToolCallPiece) -> Chunk:
        """A chunk for a piece."""
        if isinstance(piece, TextPiece):
            return self._chunk(Delta(content=piece.text))
        call = ToolCallDelta(
            index=piece.index,
            id=piece.id or None,
            type="function" if piece.id else None,
            function=FunctionDelta(piece.name or None, piece.arguments),
        )
        return self._chunk(Delta(tool_calls=(call,)))

    def end(self, finished: Finished) -> list[Chunk]:
        """The last chunk, and the usage where it was asked for."""
        metrics = finished.metrics if self._metrics else msgspec.UNSET
        chunks = [self._chunk(Delta(), finished.end.reason, metrics)]
        if self._usage:
            chunks.append(
                Chunk(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    choices=(),
                    usage=usage_of([finished]),
                )
            )
        return chunks

    def _chunk(
        self,
        delta: Delta,
        reason: Reason | None = None,
        metrics: tuple[StageMetrics, ...] | msgspec.UnsetType = msgspec.UNSET,
    ) -> Chunk:
        return Chunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=(ChunkChoice(delta=delta, finish_reason=reason),),
            usage=None if self._usage else msgspec.UNSET,
            stage_metrics=metrics,
        )
