"""What tests of requests share: pipelines of echo stages, and a request with a text."""

from engine.api import EngineConfig
from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.values import ChatMessage, ChatRequest


def say(text, **fields):
    return ChatRequest(messages=(ChatMessage(role="user", content=text),), **fields)


def pipeline(max_requests=8, max_running=2, **options):
    stage = StageConfig(kind="echo", final=True, max_running=max_running, options=options)
    return PipelineConfig(model="parrot", stages={"reply": stage}, max_requests=max_requests)


DIAMOND = PipelineConfig(
    model="parrot",
    stages={
        "both": StageConfig(kind="echo", inputs=("left", "right"), final=True),
        "left": StageConfig(kind="echo", inputs=("first",)),
        "right": StageConfig(kind="echo"),
        "first": StageConfig(kind="echo"),
    },
)


def engine_config(chat):
    return EngineConfig(model="echo", slots=2, max_in_flight=3, threads=1, chat=chat)
