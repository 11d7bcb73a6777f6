"""The routes of those who run the server: does it live, is it ready, what does it serve."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
from aiohttp import web

from duplex.version import VERSION
from engine.api import EngineError, EngineSpec, EngineStats
from web.context import CONTEXT, Context
from web.errors import json_response
from web.exposition import CONTENT_TYPE, exposition

_ENGINE_ANSWER_S = 2.0


class Health(msgspec.Struct, frozen=True):
    """The process lives."""

    status: str
    version: str
    pid: int
    uptime_s: float


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether sessions can be opened, and if not, why."""

    status: str
    reason: str | None = None
    model: str | None = None
    slots: int | None = None
    free: int | None = None


class Abilities(msgspec.Struct, frozen=True):
    """What a page has to know of a model to offer what it can do, and nothing else."""

    about: str
    examples: tuple[str, ...]
    frame_ms: float
    text: bool
    persona: bool
    sampling: bool
    voice_audio: bool
    video: bool

    @classmethod
    def of(cls, spec: EngineSpec) -> Abilities:
        """Those of the model that is served."""
        return cls(
            about=spec.about,
            examples=spec.examples,
            frame_ms=1000 * spec.frame_s,
            text=spec.text,
            persona=spec.persona,
            sampling=spec.sampling,
            voice_audio=spec.voice_audio,
            video=spec.video,
        )


class ModelCard(msgspec.Struct, frozen=True):
    """A model in a list, as OpenAI shapes it, and its abilities."""

    id: str
    object: str
    created: int
    owned_by: str
    abilities: Abilities | msgspec.UnsetType = msgspec.UNSET
    """Of the model that is talked to; a chat model has none of them."""


class ModelList(msgspec.Struct, frozen=True):
    """OpenAI's list of models."""

    object: str
    data: tuple[ModelCard, ...]


class VoiceCard(msgspec.Struct, frozen=True):
    """A voice in a list. `id` and `name` are what sessions call it."""

    id: str
    object: str
    name: str
    default: bool


class VoiceList(msgspec.Struct, frozen=True):
    """The voices, shaped as OpenAI's lists are. `default` is the one that sessions get unasked."""

    object: str
    data: tuple[VoiceCard, ...]
    default: str | None


async def health(request: web.Request) -> web.Response:
    """`GET /health`: 200 as long as the process lives."""
    uptime_s = time.monotonic() - request.app[CONTEXT].started_at
    return json_response(Health("ok", VERSION, os.getpid(), round(uptime_s, 3)))


async def ready(request: web.Request) -> web.Response:
    """`GET /ready`: 200 if the engine answers and sessions can be opened, else 503 and why."""
    context = request.app[CONTEXT]
    reason = context.runtime.not_ready
    stats = None if reason else await engine_stats(context)
    if stats is None:
        return json_response(
            Readiness("not_ready", reason or "the model engine does not answer"), status=503
        )
    model = context.runtime.spec.model
    return json_response(Readiness("ready", model=model, slots=stats.slots, free=stats.free))


async def models(request: web.Request) -> web.Response:
    """`GET /v1/models`: what is served, the model to talk to first; none without an engine."""
    context = request.app[CONTEXT]
    cards: tuple[ModelCard, ...] = ()
    if context.runtime.not_ready is None:
        spec = context.runtime.spec
        abilities = Abilities.of(spec)
        cards = (ModelCard(spec.model, "model", context.created, "duplex-media-server", abilities),)
        if (chat := context.config.chat) is not None:
            cards += (ModelCard(chat.model, "model", context.created, "duplex-media-server"),)
    return json_response(ModelList("list", cards))


async def voices(request: web.Request) -> web.Response:
    """`GET /v1/audio/voices`: the model's voices; none for a model that has one of its own."""
    spec = request.app[CONTEXT].runtime.spec
    cards = (VoiceCard(name, "voice", name, name == spec.default_voice) for name in spec.voices)
    return json_response(VoiceList("list", tuple(cards), spec.default_voice))


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`: Prometheus text."""
    context = request.app[CONTEXT]
    if context.siblings is not None:
        body = await context.siblings.metrics()
    else:
        body = exposition(context, await engine_stats(context))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def engine_stats(context: Context) -> EngineStats | None:
    """What the engine says of itself, or None if it doesn't answer in time."""
    try:
        async with asyncio.timeout(_ENGINE_ANSWER_S):
            return await context.runtime.engine.stats()
    except (EngineError, TimeoutError):
        return None
