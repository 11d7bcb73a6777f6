"""`duplex serve`: puts engine, runtime and web application together and runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from duplex.cli.errors import fail
from duplex.defaults import DEFAULT_HOST, DEFAULT_MODEL, DEFAULT_PORT

if TYPE_CHECKING:
    from duplex.config import ServeConfig
    from web.server import Server

_OTHER_DESCRIPTORS = 256
"""Open files beside the callers' sockets, generously."""


class ServeCommand(TyperCommand):
    """`serve`, whose `--tls` takes two files, or else the one word `self-signed`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Says that word twice, as the parser wants it."""
        told: list[str] = []
        for word in args:
            told.append(word)
            if word == "self-signed" and told[-2:-1] == ["--tls"]:
                told.append(word)
        return super().parse_args(ctx, told)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's name, a model directory or a Hugging Face repository id.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of settings; see docs/configuration.md.")
    ] = None,
    max_sessions: Annotated[
        str | None,
        typer.Option(
            metavar="N | auto",
            help="Conversations at a time; auto: as many as memory and the steps' time allow.",
            show_default="the model's own",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Beyond this machine an API key is required.",
            show_default=DEFAULT_HOST,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one.", show_default=str(DEFAULT_PORT))
    ] = None,
    media_workers: Annotated[
        int | None,
        typer.Option(help="Processes that carry the callers.", show_default="1: this one does"),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Where the model runs.", show_default="auto"),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="INDEX,INDEX,…", help="GPUs, with an engine on each; callers are spread."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="FRAMES", help="GPU: how much a session remembers.", show_default="the model's"
        ),
    ] = None,
    kv: Annotated[
        Literal["bf16", "fp8"] | None,
        typer.Option(help="GPU: keys and values. fp8: twice the sessions.", show_default="bf16"),
    ] = None,
    weights: Annotated[
        Literal["bf16", "fp8"] | None,
        typer.Option(help="GPU: the large transformer's weights.", show_default="bf16"),
    ] = None,
    step_mode: Annotated[
        Literal["ready", "fixed"] | None,
        typer.Option(
            help="fixed: a session's output is bit-identical whoever shares the batch.",
            show_default="ready",
        ),
    ] = None,
    delay_frames: Annotated[
        int | None,
        typer.Option(
            help="echo only: answer so many frames late, as a model that starts up.",
            show_default="0",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="A key that callers must show. May be repeated.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file of such keys, one a line.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A browser origin that may connect. May be repeated."),
    ] = None,
    tls: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="CERT KEY | self-signed",
            help="Serve HTTPS, with two PEM files or with a certificate made at start.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY", help="A robot policy to serve too; see docs/robots.md."
        ),
    ] = None,
    policy_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For the policy's factory. May be repeated."),
    ] = None,
    policy_python: Annotated[
        Path | None,
        typer.Option(help="The Python that the policy runs in.", show_default="this one"),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="What is logged.", show_default="info"),
    ] = None,
) -> None:
    """Serve a model to callers.

    Every setting can also come from the environment (DUPLEX_MAX_SESSIONS=4) or from a YAML file
    (max_sessions: 4); the command line counts most, the file least.
    """
    from duplex.config_sources import ConfigError, load_config

    options: dict[str, object] = {
        "model": model,
        "max_sessions": max_sessions,
        "host": host,
        "port": port,
        "media_workers": media_workers,
        "device": device,
        "devices": devices,
        "context": context,
        "kv": kv,
        "weights": weights,
        "step_mode": step_mode,
        "delay_frames": delay_frames,
        "api_keys": api_key,
        "api_key_file": api_key_file,
        "allowed_origins": allow_origin,
        "tls": tls,
        "policy": policy,
        "policy_options": policy_option,
        "policy_python": policy_python,
        "log_level": log_level,
    }
    given = {name: value for name, value in options.items() if value not in (None, [])}
    try:
        settings = load_config(given, file=config)
    except ConfigError as error:
        fail(str(error))
    _run_server(settings)


def _run_server(config: ServeConfig) -> None:
    import asyncio
    import logging

    from uvloop import new_event_loop

    from duplex.allocator import keep_freed_memory
    from engine.api import EngineError
    from web.server import ListenError
    from web.tls import BadCertificate
    from web.workers.pool import WorkerFailed

    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    keep_freed_memory()
    _allow_descriptors(config.max_connections + _OTHER_DESCRIPTORS)
    run = _serve_alone if config.media_workers == 1 else _serve_with_workers
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run(config))
    except (EngineError, ListenError, BadCertificate, WorkerFailed) as error:
        fail(str(error))


async def _serve_alone(config: ServeConfig) -> None:
    """This process carries the callers."""
    from duplex.runtime import Runtime
    from engine.fleet import build_engine
    from web.server import Orders, Server, serve

    runtime = Runtime(build_engine(config.engine()), resume_grace_s=config.resume_grace_s)
    server = Server(config, runtime)
    await serve(server, Orders.by_signal(), lambda: _announce(server))


async def _serve_with_workers(config: ServeConfig) -> None:
    """Others do, and this one is their hub."""
    from tempfile import TemporaryDirectory

    from duplex.cli.media_worker import start
    from duplex.runtime import Runtime
    from engine.fleet import listening_engine
    from web.server import Orders, serve
    from web.tls import with_files
    from web.workers.hub_server import HubServer

    with TemporaryDirectory(prefix="duplex-") as name:
        folder = Path(name)
        config = with_files(config, folder)
        with listening_engine(config.engine(), folder) as engine:
            server = HubServer(
                config,
                Runtime(engine),
                folder,
                lambda line, home: start(config, folder, line, home),
            )
            await serve(server, Orders.by_signal(), lambda: _announce(server))


def _allow_descriptors(count: int) -> None:
    """Raises this process's own limit of open files, as far as it may: a socket is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _announce(server: Server) -> None:
    """Says what is served, once sessions can be opened."""
    import gc

    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    spec = server.runtime.spec
    table = Table.grid(padding=(0, 2))
    rows = {
        "model": f"{spec.model} on {spec.device}, step mode {spec.step_mode}",
        "memory": f"{decimal(spec.weight_bytes)} of weights, {decimal(spec.slot_bytes)} a slot, "
        f"{decimal(spec.weight_bytes + spec.slots * spec.slot_bytes)} in all",
        "slots": spec.capacity or str(spec.slots),
        "page": f"{server.address}/",
        "callers": f"{server.address.replace('http', 'ws', 1)}/v1/realtime?duplex=1",
    }
    if server.config.media_workers > 1:
        rows["media workers"] = str(server.config.media_workers)
    if server.config.policy is not None:
        callers = server.address.replace("http", "ws", 1)
        rows["robots"] = f"{callers}/v1/realtime/robot/openpi"
    for name, value in rows.items():
        table.add_row(name, value)
    Console(highlight=False, soft_wrap=True).print(table)
    gc.collect()
    gc.freeze()  # what was loaded stays; collections need not walk through it
