"""vLLM's engine and its own chat layer: the one module that touches either.

Of vLLM 0.32: `AsyncLLM` is its public engine; its chat layer, which renders messages, parses tool
calls and loads images, is set up as its own server sets it up, and that moves between versions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from engine.stages.values import ChatRequest, Piece, Reason, StageEnd, TextPiece, ToolCallPiece
from engine.stages.vllm.messages import VllmConfig


class Refused(Exception):
    """vLLM doesn't take a request, or fails it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ChatModel:
    """AsyncLLM and its chat layer."""

    def __init__(self, llm: AsyncLLM, chat: Any) -> None:
        self._llm = llm
        self._chat = chat

    @classmethod
    async def load(cls, config: VllmConfig, observe: Callable[[int], None]) -> ChatModel:
        """Loads the model. `observe` gets the number of running requests after each step."""
        options = config.options
        _limit_cpu_memory(options.memory)
        told = {"gpu_memory_utilization": options.memory, "max_num_seqs": config.max_running}
        engine_args = AsyncEngineArgs(model=options.model, **(told | options.engine_args))

        class Observer(StatLoggerBase):  # type: ignore[misc]  # untyped here
            def __init__(self, *_: object) -> None: ...

            def record(self, scheduler_stats: Any, *_: object, **__: object) -> None:
                if scheduler_stats is not None:
                    observe(scheduler_stats.num_running_reqs)

            def log_engine_initialized(self) -> None: ...

        llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[Observer])
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", options.model])
        args.enable_log_requests = False
        if options.tool_parser is not None:
            args.enable_auto_tool_choice, args.tool_call_parser = True, options.tool_parser
        state: Any = SimpleNamespace()
        await init_app_state(llm, state, args, await llm.get_supported_tasks())
        if state.openai_serving_chat is None:
            raise Refused(f"{options.model} generates no text")
        return cls(llm, state.openai_serving_chat)

    @property
    def unfinished(self) -> int:
        """Requests that it has."""
        return int(self._llm.get_num_unfinished_requests())

    @property
    def error(self) -> BaseException | None:
        """Why it can't go on, if it can't."""
        return self._llm.dead_error if self._llm.errored else None

    def shutdown(self) -> None:
        """Ends it and its processes."""
        self._llm.shutdown()

    async def answer(self, request: ChatRequest) -> AsyncGenerator[Piece | StageEnd, None]:
        """Pieces, then the end. Closing it aborts the request. Raises Refused."""
        body = msgspec.to_builtins(request) | {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            events = await self._chat.create_chat_completion(ChatCompletionRequest(**body), None)
        except (
            ValueError,
            VLLMValidationError,
        ) as error:  # its own word for a request it can't take
            raise Refused(str(error), "messages") from error
        if isinstance(events, ErrorResponse):
            raise Refused(events.error.message, events.error.param or "")
        reason: Reason = "stop"
        prompt, output, made = None, 0, 0
        async with contextlib.aclosing(events):
            async for event in events:
                chunk = _chunk_of(event)
                if chunk is None:
                    continue
                usage = chunk.get("usage") or {}
                made += usage.get("completion_tokens", output) - output
                output = usage.get("completion_tokens", output)
                prompt = usage.get("prompt_tokens", prompt)
                for choice in chunk["choices"]:
                    for piece in _pieces_of(choice["delta"], made):
                        yield piece
                        made = 0
                    if choice.get("finish_reason") in ("length", "tool_calls"):
                        reason = choice["finish_reason"]
        yield StageEnd(reason=reason, prompt_tokens=prompt, output_tokens=output)


def _chunk_of(event: str) -> dict[str, Any] | None:
    data = event.removeprefix("data: ").strip()
    if not data or data == "[DONE]":
        return None
    chunk: dict[str, Any] = msgspec.json.decode(data)
    if error := chunk.get("error"):
        raise Refused(error.get("message", "it failed"), error.get("param") or "")
    return chunk


def _pieces_of(delta: dict[str, Any], tokens: int) -> list[Piece]:
    pieces: list[Piece] = []
    if text := delta.get("content"):
        pieces.append(TextPiece(text, tokens))
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
