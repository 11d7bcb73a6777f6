"""`duplex offline`: a recording through an engine of its own, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from duplex.cli.errors import fail
from duplex.defaults import DEFAULT_MODEL

if TYPE_CHECKING:
    from duplex.offline import OfflineResult
    from engine.api import EngineConfig, OpenParams


def offline(
    recording: Annotated[Path, typer.Argument(help="WAV, FLAC, OGG or MP3.")],
    out: Annotated[Path, typer.Argument(help="Where the answer goes, as WAV.")],
    *,
    model: Annotated[
        str, typer.Option(help="A model's name, a directory or a Hugging Face repository id.")
    ] = DEFAULT_MODEL,
    persona: Annotated[
        str | None, typer.Option(help="Who the model is to be: its text prompt.")
    ] = None,
    voice: Annotated[str | None, typer.Option(help="One of the model's voices.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest token, don't sample.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where the model runs.")
    ] = "auto",
    step_mode: Annotated[
        Literal["ready", "fixed"], typer.Option(help="As the server's --step-mode.")
    ] = "ready",
) -> None:
    """Run a recording through a model at full speed, without a server.

    The frames, slots and steps are the server's.
    """
    from rich.console import Console
    from rich.table import Table

    from engine.api import EngineConfig, EngineError, OpenParams
    from media.files import AudioFileError

    temperature = 0.0 if greedy else None
    params = OpenParams(
        persona=persona,
        voice=voice,
        seed=seed,
        audio_temperature=temperature,
        text_temperature=temperature,
    )
    config = EngineConfig(model=model, slots=1, device=device, step_mode=step_mode)
    try:
        result = asyncio.run(_run(recording, out, config, params))
    except (EngineError, AudioFileError) as error:
        fail(str(error))
    steps = sorted(result.step_s)
    table = Table.grid(padding=(0, 2))
    table.add_row("frames in", str(result.frames_in))
    table.add_row("frames out", str(result.frames_out))
    if steps:
        table.add_row("step p50", f"{1000 * steps[len(steps) // 2]:.2f} ms")
        table.add_row("step max", f"{1000 * steps[-1]:.2f} ms")
    table.add_row("transcript", result.text or "-")
    table.add_row("written", str(out))
    Console(highlight=False).print(table)


async def _run(
    recording: Path, out: Path, config: EngineConfig, params: OpenParams
) -> OfflineResult:
    from rich.console import Console
    from rich.progress import Progress

    from duplex.offline import run_offline
    from engine.child import ChildEngine
    from media.files import read_audio, write_wav
    from media.wav import Subtype

    engine = ChildEngine(config)
    await engine.start()
    try:
        rate = engine.spec.sample_rate
        pcm = await asyncio.to_thread(read_audio, recording, rate)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("frames", total=None)

            def show(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            result = await run_offline(engine, pcm, params, show)
        write_wav(out, result.pcm, rate, Subtype.FLOAT)
    finally:
        await engine.stop()
    return result
