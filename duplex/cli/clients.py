"""`duplex replay` and `duplex bench`: callers of a running server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from duplex.cli.errors import fail
from duplex.defaults import DEFAULT_URL

Url = Annotated[
    str, typer.Option(help="The server, with or without a path.", envvar="DUPLEX_CLIENT_URL")
]
Key = Annotated[
    str | None,
    typer.Option(help="The server's API key.", envvar="DUPLEX_CLIENT_KEY", show_default=False),
]
Format = Annotated[
    Literal["pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw"],
    typer.Option(help="How audio is sent and received."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


def replay(
    recording: Annotated[
        Path, typer.Argument(help="WAV, FLAC, OGG or MP3, of any rate and channel count.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Where the answer goes, as WAV.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    persona: Annotated[
        str | None, typer.Option(help="Who the model is to be: its text prompt.")
    ] = None,
    voice: Annotated[str | None, typer.Option(help="One of the model's voices.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest token, don't sample.")
    ] = False,
    format: Format = "pcm_f32le",
    no_pacing: Annotated[
        bool, typer.Option("--no-pacing", help="Send as fast as the server takes it.")
    ] = False,
    tail: Annotated[
        float, typer.Option(help="Seconds of silence after the recording.", min=0.0)
    ] = 0.0,
    json: Json = False,
) -> None:
    """Send a recording to a server as a caller would, and keep what it answers.

    Prints frames in and out, latencies and the transcript.
    """
    from contextlib import nullcontext

    from rich.console import Console

    from clients.errors import ClientError
    from clients.options import SessionOptions
    from clients.replay import replay as run
    from clients.report import replay_progress, replay_table, to_json
    from media.files import AudioFileError
    from media.formats import AudioFormat

    options = SessionOptions(
        url=url,
        api_key=api_key,
        persona=persona,
        voice=voice,
        seed=seed,
        greedy=greedy,
        input_format=AudioFormat(format),
        output_format=AudioFormat(format),
    )
    try:
        with nullcontext() if json else replay_progress(Console(stderr=True)) as progress:
            result = asyncio.run(
                run(
                    recording,
                    out,
                    options,
                    pacing=not no_pacing,
                    tail_s=tail,
                    on_progress=progress,
                )
            )
    except (ClientError, AudioFileError) as error:
        fail(str(error))
    if json:
        typer.echo(to_json(result))
    else:
        Console(highlight=False).print(replay_table(result))


def bench(
    *,
    sessions: Annotated[int, typer.Option(help="Conversations at a time.", min=1)] = 10,
    seconds: Annotated[float, typer.Option(help="How long they go on.", min=0.1)] = 10.0,
    model: Annotated[
        str | None,
        typer.Option(
            help="Start a server of this model for it, as `duplex serve MODEL`, not use a running "
            "one.",
            show_default=False,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    format: Format = "pcm16",
    pid: Annotated[
        int | None,
        typer.Option(help="The server's process, for its CPU use.", show_default="asked of it"),
    ] = None,
    json: Json = False,
) -> None:
    """Hold many paced conversations with a server at once, and measure it.

    Prints frames, misses, latencies and the server's use of the CPU.
    """
    from contextlib import nullcontext

    from rich.console import Console

    from clients.bench import bench as run
    from clients.errors import ClientError
    from clients.options import SessionOptions
    from clients.report import bench_table, to_json
    from clients.serving import serving
    from media.formats import AudioFormat

    try:
        with nullcontext(url) if model is None else serving(model, sessions) as address:
            options = SessionOptions(
                url=address,
                api_key=api_key,
                input_format=AudioFormat(format),
                output_format=AudioFormat(format),
            )
            result = asyncio.run(run(options, sessions, seconds, pid=pid))
    except ClientError as error:
        fail(str(error))
    if json:
        typer.echo(to_json(result))
    else:
        Console(highlight=False).print(bench_table(result))
