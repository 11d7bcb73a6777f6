"""A stage that says what it is told: for tests, load and latency, without weights."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from typing import Final

from engine.api import BadParams, EngineError
from engine.stages.kinds import EchoOptions
from engine.stages.values import Piece, StageEnd, StageInput, TextPiece

_WORD: Final = re.compile(r"\s*\S+\s*?(?=\s|$)")
_CUDA_SIZE: Final = 2048
_CUDA_ROUNDS: Final = 200


class EchoStage:
    """Gives the text of the stages before it, or else of the last user message, word by word.

    A word is a token. With `step_ms` each takes as long as a model's step on its device would.
    """

    def __init__(self, options: EchoOptions) -> None:
        self._work = _work(options)

    def run(self, given: StageInput) -> Generator[Piece | None, None, StageEnd]:
        """One word a piece, at most `max_tokens` of them."""
        request = given.request
        if request.logprobs:
            raise BadParams("logprobs", "This model gives no log probabilities.")
        words = _WORD.findall(_heard(given))
        limit = len(words) if request.max_tokens is None else request.max_tokens
        for word in words[:limit]:
            self._work()
            yield TextPiece(word)
        return StageEnd(
            reason="length" if limit < len(words) else "stop",
            prompt_tokens=sum(len(message.text.split()) for message in request.messages),
            output_tokens=min(limit, len(words)),
        )


def _heard(given: StageInput) -> str:
    if given.texts:
        return " ".join(given.texts)
    spoken = [message.text for message in given.request.messages if message.role == "user"]
    return spoken[-1] if spoken else ""


def _work(options: EchoOptions) -> Callable[[], None]:
    """What takes `step_ms` on the device."""
    seconds = options.step_ms / 1000
    if not seconds:
        return lambda: None
    return _cuda_work(seconds) if options.device == "cuda" else lambda: _cpu_work(seconds)


def _cpu_work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _cuda_work(seconds: float) -> Callable[[], None]:
    """A matrix that is multiplied as often as fills the time, measured here once."""
    import torch

    if not torch.cuda.is_available():
        raise EngineError("stages: options.device: there is no CUDA device here")
    matrix = torch.zeros(_CUDA_SIZE, _CUDA_SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(matrix)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.current_stream().synchronize()

    multiply(_CUDA_ROUNDS)  # the first launches are slow
    begin = time.perf_counter()
    multiply(_CUDA_ROUNDS)
    times = max(1, round(seconds * _CUDA_ROUNDS / (time.perf_counter() - begin)))
    return lambda: multiply(times)
