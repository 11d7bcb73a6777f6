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
    TokenLogprob,
    ToolCall,
    ToolCallPiece,
)

MAX_BATCH = 64
"""Conversations in one request."""
MAX_CHOICES = 16
"""Answers to one conversation."""


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream adds at its end."""

    include_usage: bool = False


class _Common(ChatRequest, frozen=True, kw_only=True):
    """What both bodies have beside the request itself. Other fields have no effect here."""

    model: str
    max_completion_tokens: Positive | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
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
        if self.top_logprobs is not None and not self.logprobs:
            raise SessionError(
                "invalid_value", "top_logprobs goes with logprobs.", param="top_logprobs"
            )
        if self.audio is not None:
            raise SessionError("invalid_value", "Answers are text.", param="audio")

    def _request(self, messages: tuple[ChatMessage, ...], choice: int = 0) -> ChatRequest:
        """A conversation of this body's, as stages take it."""
        fields = {name: getattr(self, name) for name in ChatRequest.__struct_fields__}
        fields["messages"] = messages
        fields["max_tokens"] = self.max_completion_tokens or self.max_tokens
        if self.seed is not None and choice:
            fields["seed"] = (self.seed + choice) % (1 << 63)
        return ChatRequest(**fields)


class CompletionBody(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    stream_options: StreamOptions | None = None

    @property
    def requests(self) -> list[ChatRequest]:
        """One for each choice; their seeds differ."""
        return [self._request(self.messages, choice) for choice in range(self.n or 1)]


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
        if self.n not in (None, 1):
            raise SessionError("invalid_value", "A batch has one choice for each.", param="n")

    @property
    def requests(self) -> list[ChatRequest]:
        """One for each conversation."""
        return [self._request(messages) for messages in self.messages]


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


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities of tokens."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None

    @classmethod
    def of(cls, known: tuple[TokenLogprob, ...]) -> Logprobs | None:
        """None if none are known."""
        return cls(known) if known else None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: Answer
    logprobs: Logprobs | None = None
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

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
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


def usage_of(body: CompletionBody | BatchBody, ends: Sequence[Finished]) -> Usage | None:
    """The tokens of all; None if they are not known of each. Choices share their prompt."""
    prompts = ends if isinstance(body, BatchBody) else ends[:1]
    prompt = [finished.end.prompt_tokens for finished in prompts]
    output = [finished.end.output_tokens for finished in ends]
    if None in prompt or None in output:
        return None
    made, given = sum(n or 0 for n in output), sum(n or 0 for n in prompt)
    return Usage(given, made, given + made)


def completion(
    id: str, created: int, body: CompletionBody | BatchBody, ends: Sequence[tuple[Made, Finished]]
) -> Completion:
    """The answer to a body: a choice for each of its requests, in their order."""
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
                logprobs=Logprobs.of(made.logprobs),
                finish_reason=end.end.reason,
            )
            for index, (made, end) in enumerate(ends)
        ),
        usage=usage_of(body, finished),
        stage_metrics=metrics if body.return_stage_metrics else msgspec.UNSET,
    )


class ChunkWriter:
    """Renders one streamed answer, of one choice or several."""

    def __init__(self, id: str, created: int, body: CompletionBody) -> None:
        self._id = id
        self._created = created
        self._body = body
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        self._ends: list[Finished] = []

    def begin(self) -> list[Chunk]:
        """The first chunks: who speaks."""
        delta = Delta(role="assistant", content="")
        return [self._chunk(index, delta) for index in range(self._body.n or 1)]

    def more(self, index: int, piece: TextPiece | ToolCallPiece) -> Chunk:
        """A chunk for a piece of a choice."""
        if isinstance(piece, TextPiece):
            logprobs = Logprobs.of(piece.logprobs)
            return self._chunk(index, Delta(content=piece.text), logprobs=logprobs)
        call = ToolCallDelta(
            index=piece.index,
            id=piece.id or None,
            type="function" if piece.id else None,
            function=FunctionDelta(piece.name or None, piece.arguments),
        )
        return self._chunk(index, Delta(tool_calls=(call,)))

    def end(self, index: int, finished: Finished) -> list[Chunk]:
        """A choice's last chunk and, after the last choice, the usage where it was asked for."""
        self._ends.append(finished)
        metrics = finished.metrics if self._body.return_stage_metrics else msgspec.UNSET
        chunks = [self._chunk(index, Delta(), reason=finished.end.reason, metrics=metrics)]
        if self._usage and len(self._ends) == (self._body.n or 1):
            chunks.append(
                Chunk(
                    id=self._id,
                    created=self._created,
                    model=self._body.model,
                    choices=(),
                    usage=usage_of(self._body, self._ends),
                )
            )
        return chunks

    def _chunk(
        self,
        index: int,
        delta: Delta,
        *,
        reason: Reason | None = None,
        logprobs: Logprobs | None = None,
        metrics: tuple[StageMetrics, ...] | msgspec.UnsetType = msgspec.UNSET,
    ) -> Chunk:
        choice = ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        return Chunk(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=(choice,),
            usage=None if self._usage else msgspec.UNSET,
            stage_metrics=metrics,
        )
