"""`duplex offline`: recordings through an engine of its own, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from duplex.cli.errors import fail
from duplex.defaults import DEFAULT_MODEL

if TYPE_CHECKING:
    from duplex.batch import Job, Summary
    from duplex.offline import OfflineResult
    from duplex.runtime import Runtime
    from engine.api import EngineConfig, OpenParams


def offline(
    source: Annotated[
        str, typer.Argument(help="A recording; or a directory or a quoted glob of them.")
    ],
    out: Annotated[
        Path, typer.Argument(help="The answer's WAV; for several recordings, a directory.")
    ],
    *,
    settings: Annotated[
        Path | None,
        typer.Option(help="JSONL: a line for a recording that has its own voice, persona, seed …"),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model's name, a directory or a Hugging Face repository id.")
    ] = DEFAULT_MODEL,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Recordings at a time. [default: the model's]")
    ] = None,
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
    """Run recordings through a model at full speed, without a server.

    The frames, slots and steps are the server's. One recording gives one WAV. A directory, a
    glob fill all slots; OUT then holds a WAV for each, transcripts.jsonl and
    summary.json, and a run that was interrupted goes on where it stopped.
    """
    from duplex.batch import BatchError, jobs_of, recordings_in
    from duplex.offline import OfflineError
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
    one = settings is None and Path(source).is_file()
    config = EngineConfig(
        model=model, slots=1 if one else slots, device=device, step_mode=step_mode
    )
    try:
        if one:
            _show_result(asyncio.run(_run_one(Path(source), out, config, params)), out)
            return
        jobs = jobs_of(recordings_in(source), settings, params)
        summary = asyncio.run(_run_batch(jobs, out, config))
    except (EngineError, AudioFileError, BatchError, OfflineError) as error:
        fail(str(error))
    _show_summary(summary, out)
    if summary.failed:
        raise typer.Exit(1)


async def _run_one(
    recording: Path, out: Path, config: EngineConfig, params: OpenParams
) -> OfflineResult:
    from duplex.offline import run_offline, settings_of
    from media.files import read_audio, write_wav
    from media.wav import Subtype

    runtime = _runtime(config)
    await runtime.start()
    try:
        rate = runtime.spec.sample_rate
        pcm = await asyncio.to_thread(read_audio, recording, rate)
        with _Bar("frames") as bar:
            result = await run_offline(runtime, pcm, settings_of(params), bar)
        write_wav(out, result.pcm, rate, Subtype.FLOAT)
    finally:
        await runtime.stop()
    return result


async def _run_batch(jobs: list[Job], out: Path, config: EngineConfig) -> Summary:
    from duplex.batch import Batch

    runtime = _runtime(config)
    await runtime.start()
    try:
        with _Bar("recordings") as bar:
            return await Batch(runtime, jobs, out).run(bar)
    finally:
        await runtime.stop()


def _runtime(config: EngineConfig) -> Runtime:
    from duplex.runtime import Runtime
    from engine.child import ChildEngine

    return Runtime(ChildEngine(config))


class _Bar:
    """A progress bar on standard error: call it with what is done and what there is in all."""

    def __init__(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._progress = Progress(
            unit,
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(unit, total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


def _show_result(result: OfflineResult, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

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


def _show_summary(summary: Summary, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name in ("recordings", "done", "skipped", "failed"):
        table.add_row(name, str(getattr(summary, name)))
    if summary.done:
        table.add_row("audio", f"{summary.audio_s:.1f} s in {summary.elapsed_s:.1f} s")
        table.add_row("speed", f"{summary.realtime_factor:.1f} times real time")
    elif not summary.failed:
        table.add_row("audio", "all done already, by an earlier run")
    table.add_row("written", str(out))
    Console(highlight=False).print(table)
