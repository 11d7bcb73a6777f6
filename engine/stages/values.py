"""What goes into stages and what comes out: plain data.

The names and shapes of chat are OpenAI's (Chat Completions), as every chat model speaks them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Modality = Literal["messages", "text"]
"""What a stage takes or makes: a conversation of messages, or text."""


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text within a message."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an image is; a data URL holds it."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image within a message."""

    image_url: ImageUrl


class FunctionCall(msgspec.Struct, frozen=True):
    """A function that a model calls. `arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, whole."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[TextPart | ImagePart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All its text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


class FunctionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that a model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a model may call."""

    type: Literal["function"] = "function"
    function: FunctionSpec


class FunctionName(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The one tool that a model must call."""

    type: Literal["function"] = "function"
    function: FunctionName


class Schema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON schema under a name."""

    name: str
    description: str | None = None
    schema: dict[str, object] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape that an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


Positive = Annotated[int, msgspec.Meta(ge=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Stop = Annotated[str, msgspec.Meta(min_length=1)]
MAX_STOPS = 4
"""Texts in `stop`."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation to be answered. None means the model's own default."""

    messages: Annotated[tuple[ChatMessage, ...], msgspec.Meta(min_length=1)]
    tools: tuple[Tool, ...] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Int64 | None = None
    stop: Stop | Annotated[tuple[Stop, ...], msgspec.Meta(max_length=MAX_STOPS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    reasoning_effort: str | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop_token_ids: tuple[Int64, ...] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None


class StageInput(msgspec.Struct, frozen=True):
    """What a stage is given: the request, and what the stages made that it takes its input from."""

    request: ChatRequest
    texts: tuple[str, ...] = ()
    """One for each of its `inputs`, in their order; none for a stage that begins."""


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that the model might have taken, and how likely it was."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """A token that the model took, and the likeliest ones."""

    top_logprobs: tuple[TopLogprob, ...] = ()


class TextPiece(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """More of an answer's text."""

    text: str
    tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of its tokens, if they were asked for."""


class ToolCallPiece(msgspec.Struct, frozen=True, tag="tool_call", omit_defaults=True):
    """More of a call: `id` and `name` come with its first piece, `arguments` grow."""

    index: int
    """Which call of the answer's."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    tokens: int = 1


Piece = TextPiece | ToolCallPiece
Reason = Literal["stop", "length", "tool_calls"]
"""Why a model stopped: by itself, at `max_tokens`, or to have tools called."""


class StageEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stage's work ended. None: not known."""

    reason: Reason
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class StageMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of one stage of one request, in seconds. What wasn't measured is absent."""

    stage: str
    wait_s: float | None = None
    """From its arrival to the start of its work."""
    first_output_s: float | None = None
    """From its arrival to its first output."""
    inter_output_mean_s: float | None = None
    inter_output_max_s: float | None = None
    total_s: float
    """From its arrival to its end."""
    outputs: int


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A request's last output."""

    end: StageEnd
    metrics: tuple[StageMetrics, ...]
    """Of each stage, in the order in which they ended."""


RequestOutput = TextPiece | ToolCallPiece | Finished


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has made so far."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class StageStats(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's gauges, read from its scheduler."""

    stage: str
    waiting: int
    running: int
    unread: int = 0
    """Begun, and at rest until their readers take what they have made."""
