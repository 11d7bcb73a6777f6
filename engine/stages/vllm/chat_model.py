"""vLLM's engine and its own chat layer: the one module that touches either.

Of vLLM 0.32: `AsyncLLM` is its public engine; its chat layer, which renders messages, parses tool
calls and loads images, is set up as its own server sets it up, and that moves between versions.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import psutil
import pydantic
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.exceptions import VLLMClientError
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from engine.api import BadParams, EngineError
from engine.stages.values import (
    ChatRequest,
    ImagePart,
    Piece,
    Reason,
    StageEnd,
    TextPiece,
    TokenLogprob,
    ToolCallPiece,
)
from engine.stages.vllm.messages import VllmConfig
from engine.stages.vllm.scheduling import give_way

_DETAILS: Final = re.compile(r" \((parameter=(?P<field>\w+)|value=).*\)$", re.DOTALL)
"""What vLLM adds to the message of an error."""

_OBJECT: Final = re.compile(r" <[\w.]+ object at 0x[0-9a-f]+>")
_FIELDS: Final = {"input_tokens": "messages", "input_text": "messages"}
"""What vLLM calls some fields."""


class ChatModel:
    """AsyncLLM and its chat layer."""

    def __init__(self, llm: AsyncLLM, chat: Any, config: VllmConfig) -> None:
        self._llm = llm
        self._chat = chat
        self._options = config.options

    @classmethod
    async def load(cls, config: VllmConfig, observe: Callable[[int], None]) -> ChatModel:
        """Loads the model. `observe` gets the number of running requests after each step."""
        options = config.options
        _limit_cpu_memory(options.memory)
        told = {
            "gpu_memory_utilization": options.memory,
            "max_num_seqs": config.max_running,
            "async_scheduling": False,  # a step scheduled ahead can't give way any more
        }
        engine_args = AsyncEngineArgs(model=options.model, **(told | options.engine_args))

        class Observer(StatLoggerBase):  # type: ignore[misc]  # untyped here
            def __init__(self, *_: object) -> None: ...

            def record(self, scheduler_stats: Any, *_: object, **__: object) -> None:
                if scheduler_stats is not None:
                    observe(scheduler_stats.num_running_reqs)

            def log_engine_initialized(self) -> None: ...

        vllm_config = engine_args.create_engine_config()
        give_way(vllm_config)
        llm = AsyncLLM.from_vllm_config(vllm_config, stat_loggers=[Observer])
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", options.model])
        args.enable_log_requests = False
        if options.tool_parser is not None:
            args.enable_auto_tool_choice, args.tool_call_parser = True, options.tool_parser
        state: Any = SimpleNamespace()
        await init_app_state(llm, state, args, await llm.get_supported_tasks())
        if state.openai_serving_chat is None:
            raise EngineError(f"{options.model} generates no text")
        return cls(llm, state.openai_serving_chat, config)

    @property
    def unfinished(self) -> int:
        """Requests that it has."""
        return int(self._llm.get_num_unfinished_requests())

    @property
    def error(self) -> BaseException | None:
        """Why it can't go on, if it can't."""
        return self._llm.dead_error if self._llm.errored else None

    async def answer(self, request: ChatRequest) -> AsyncGenerator[Piece | StageEnd, None]:
        """Pieces, then the end. Closing it aborts the request.

        Raises BadParams for a request that can't be taken, EngineError for one that fails.
        """
        self._check(request)
        body = msgspec.to_builtins(request) | {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            events = await self._chat.create_chat_completion(ChatCompletionRequest(**body), None)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise BadParams(str(first["loc"][0] if first["loc"] else ""), first["msg"]) from error
        except (ValueError, VLLMClientError) as error:  # its own words for what it can't take
            raise self._refusal(str(error), getattr(error, "parameter", None)) from error
        if isinstance(events, ErrorResponse):
            raise self._failure(events.error)
        reason: Reason = "stop"
        prompt, output, made = None, 0, 0
        async with contextlib.aclosing(events):
            async for event in events:
                chunk = self._chunk_of(event)
                if chunk is None:
                    continue
                usage = chunk.get("usage") or {}
                made += usage.get("completion_tokens", output) - output
                output = usage.get("completion_tokens", output)
                prompt = usage.get("prompt_tokens", prompt)
                for choice in chunk["choices"]:
                    for piece in _pieces_of(choice, made):
                        yield piece
                        made = 0
                    if choice.get("finish_reason") in ("length", "tool_calls"):
                        reason = choice["finish_reason"]
        yield StageEnd(reason=reason, prompt_tokens=prompt, output_tokens=output)

    def _check(self, request: ChatRequest) -> None:
        """What vLLM would do, or would refuse in the words of its own command line."""
        calls = request.tools and request.tool_choice != "none"
        if calls and self._options.tool_parser is None:
            raise BadParams("tools", "This model calls no tools: no tool_parser is set for it.")
        if not self._options.engine_args.get("allowed_media_domains"):
            for message in request.messages:
                for part in message.content or ():
                    if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:"):
                        raise BadParams(
                            "messages",
                            "Images are taken as data URLs: no domain is set in "
                            "allowed_media_domains to fetch any from.",
                        )

    def _chunk_of(self, event: str) -> dict[str, Any] | None:
        data = event.removeprefix("data: ").strip()
        if not data or data == "[DONE]":
            return None
        chunk: dict[str, Any] = msgspec.json.decode(data)
        if error := chunk.get("error"):
            raise self._failure(ErrorInfo(**error))
        return chunk

    def _failure(self, error: ErrorInfo) -> EngineError:
        if 400 <= error.code < 500:
            return self._refusal(error.message, error.param)
        return EngineError(error.message)

    def _refusal(self, message: str, field: str | None) -> BadParams:
        details = _DETAILS.search(message)
        if details is not None:
            message, field = message[: details.start()], field or details["field"]
        field = _FIELDS.get(field or "", field)
        if not field and ("multimodal" in message or "image" in message):
            field = "messages"
        words = _OBJECT.sub("", message.replace(self._options.model, "The model")).strip()
        return BadParams(field or "", words if words.endswith(".") else f"{words}.")


def _pieces_of(choice: dict[str, Any], tokens: int) -> list[Piece]:
    pieces: list[Piece] = []
    delta, logprobs = choice["delta"], (choice.get("logprobs") or {}).get("content") or ()
    if (text := delta.get("content")) or logprobs:
        known = msgspec.convert(logprobs, tuple[TokenLogprob, ...])
        pieces.append(TextPiece(text or "", tokens, known))
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        pieces.append(
            ToolCallPiece(
                call["index"],
                call.get("id") or "",
                function.get("name") or "",
                function.get("arguments") or "",
                0 if pieces else tokens,
            )
        )
    return pieces


def _limit_cpu_memory(share: float) -> None:
    """vLLM on a CPU takes the KV cache's size in GiB, by the environment only."""
    gib = max(1, int(share * psutil.virtual_memory().total / (1 << 30)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(gib))
