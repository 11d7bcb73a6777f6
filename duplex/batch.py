"""Many recordings through the free slots of an engine, with a record of what is done.

The output directory holds `<name>.wav` for each recording, `transcripts.jsonl` with a line for
each that is done, and `summary.json`. A run that finds its own lines there goes on after them.
"""

from __future__ import annotations

import asyncio
import glob
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from duplex.offline import OfflineError, OfflineResult, run_offline, settings_of
from duplex.runtime import Runtime
from engine.api import OpenParams
from media.files import AudioFileError, read_audio, write_wav
from media.wav import Subtype

AUDIO_SUFFIXES = frozenset((".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a"))
TRANSCRIPTS = "transcripts.jsonl"
SUMMARY = "summary.json"


class BatchError(Exception):
    """A batch that can't be begun: what is wrong, and where."""


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the settings file. What it leaves out is as on the command line."""

    recording: str
    """A path, relative to the settings file."""
    name: str | None = None
    """Of the output. None: the recording's own, without its ending."""
    voice: str | None = None
    persona: str | None = None
    seed: int | None = None
    text_temperature: float | None = None
    text_top_k: int | None = None
    audio_temperature: float | None = None
    audio_top_k: int | None = None


class Job(msgspec.Struct, frozen=True):
    """One recording and how it is to be run."""

    name: str
    recording: Path
    params: OpenParams


class Line(msgspec.Struct, kw_only=True):
    """A line of `transcripts.jsonl`."""

    name: str
    recording: str
    settings: dict[str, object]
    output: str | None = None
    transcript: str = ""
    frames_in: int = 0
    frames_out: int = 0
    seconds: float = 0.0
    """Of computing, beside others."""
    error: str | None = None


class Summary(msgspec.Struct, kw_only=True):
    """What a run has done."""

    recordings: int
    done: int
    """In this run."""
    skipped: int
    """Done by an earlier one."""
    failed: int
    audio_s: float
    """Of recordings done in this run."""
    elapsed_s: float
    realtime_factor: float
    """Seconds of audio in a second of this run."""


def recordings_in(source: str) -> list[Path]:
    """The recordings of a directory (and below it) or a glob. Raises BatchError if none."""
    path = Path(source)
    found = path.rglob("*") if path.is_dir() else map(Path, glob.glob(source, recursive=True))
    recordings = sorted(p for p in found if p.is_file() and p.suffix.lower() in AUDIO_SUFFIXES)
    if not recordings:
        raise BatchError(f"{source}: no recordings ({', '.join(sorted(AUDIO_SUFFIXES))})")
    return recordings


def jobs_of(recordings: Sequence[Path], settings: Path | None, defaults: OpenParams) -> list[Job]:
    """The jobs of recordings: those that the settings file names as it says, the rest as default.

    A recording may have several lines, with names of their own. Raises BatchError naming the line
    that is wrong, or two jobs whose output would be one.
    """
    told = {} if settings is None else _read_settings(settings, recordings, defaults)
    jobs: list[Job] = []
    for recording in recordings:
        jobs += told.get(recording.resolve()) or [Job(recording.stem, recording, defaults)]
    return _distinct(jobs)


def _read_settings(
    settings: Path, recordings: Sequence[Path], defaults: OpenParams
) -> dict[Path, list[Job]]:
    known = {path.resolve(): path for path in recordings}
    jobs: dict[Path, list[Job]] = {}
    try:
        lines = settings.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BatchError(f"{settings}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{settings}, line {number}"
        try:
            told = msgspec.json.decode(line, type=JobSettings)
        except msgspec.MsgspecError as error:
            raise BatchError(f"{where}: {error}") from error
        place = (settings.parent / told.recording).resolve()
        if place not in known:
            raise BatchError(f"{where}: recording: {told.recording} is none of the recordings")
        name = told.name or place.stem
        if Path(name).name != name or name.startswith("."):
            raise BatchError(f"{where}: name: {name!r} is no file name")
        given = msgspec.structs.asdict(told)
        changes = {
            field: given[field]
            for field in OpenParams.__struct_fields__
            if given.get(field) is not None
        }
        params = msgspec.structs.replace(defaults, **changes)
        jobs.setdefault(place, []).append(Job(name, known[place], params))
    return jobs


def _distinct(jobs: list[Job]) -> list[Job]:
    seen: dict[str, Job] = {}
    for job in jobs:
        if job.name in seen:
            raise BatchError(
                f"two recordings would both be {job.name}.wav: {seen[job.name].recording} and "
                f"{job.recording}; give them names in a settings file"
            )
        seen[job.name] = job
    return jobs


class Batch:
    """A run over jobs. Slots of the runtime are filled as they become free."""

    def __init__(self, runtime: Runtime, jobs: Sequence[Job], out: Path) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._out = out

    async def run(self, progress: Callable[[int, int], None]) -> Summary:
        """Runs what isn't done yet; `progress` gets the jobs done and in all.

        A recording that fails has a line with its error, and is tried again by the next run.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        done = self._done()
        left = [job for job in self._jobs if job.name not in done]
        ready = iter(left)
        lines: list[Line] = []
        with (self._out / TRANSCRIPTS).open("ab") as transcripts:

            async def lane() -> None:
                for job in ready:
                    line = await self._run(job)
                    transcripts.write(msgspec.json.encode(line) + b"\n")
                    transcripts.flush()
                    lines.append(line)
                    progress(len(done) + len(lines), len(self._jobs))

            progress(len(done), len(self._jobs))
            async with asyncio.TaskGroup() as lanes:
                for _ in range(min(self._runtime.spec.slots, len(left))):
                    lanes.create_task(lane())
        elapsed = time.monotonic() - began
        good = [line for line in lines if line.error is None]
        audio_s = sum(line.frames_in for line in good) * self._runtime.spec.frame_s
        summary = Summary(
            recordings=len(self._jobs),
            done=len(good),
            skipped=len(done),
            failed=len(lines) - len(good),
            audio_s=round(audio_s, 3),
            elapsed_s=round(elapsed, 3),
            realtime_factor=round(audio_s / elapsed, 3) if elapsed > 0 else 0.0,
        )
        text = msgspec.json.format(msgspec.json.encode(summary))
        (self._out / SUMMARY).write_bytes(text + b"\n")
        return summary

    async def _run(self, job: Job) -> Line:
        line = Line(name=job.name, recording=str(job.recording), settings=_told(job.params))
        output = self._out / f"{job.name}.wav"
        began = time.monotonic()
        try:
            result = await self._convert(job, output)
        except (OfflineError, AudioFileError) as error:
            line.error = str(error)
        else:
            line.output, line.transcript = output.name, result.text
            line.frames_in, line.frames_out = result.frames_in, result.frames_out
        line.seconds = round(time.monotonic() - began, 3)
        return line

    async def _convert(self, job: Job, output: Path) -> OfflineResult:
        rate = self._runtime.spec.sample_rate
        pcm = await asyncio.to_thread(read_audio, job.recording, rate)
        result = await run_offline(self._runtime, pcm, settings_of(job.params))
        await asyncio.to_thread(write_wav, output, result.pcm, rate, Subtype.FLOAT)
        return result

    def _done(self) -> set[str]:
        """The jobs that an earlier run has done with the same settings.

        Raises BatchError for a record that isn't one.
        """
        path = self._out / TRANSCRIPTS
        if not path.exists():
            return set()
        wanted = {job.name: (str(job.recording), _told(job.params)) for job in self._jobs}
        done: set[str] = set()
        whole, _, cut = path.read_bytes().rpartition(b"\n")
        if cut:
            path.write_bytes(whole + b"\n" if whole else b"")  # a run was ended while it wrote
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                line = msgspec.json.decode(text, type=Line)
            except msgspec.MsgspecError as error:
                raise BatchError(f"{path}, line {number}: {error}") from error
            same = wanted.get(line.name) == (line.recording, line.settings)
            if same and line.error is None and (self._out / f"{line.name}.wav").exists():
                done.add(line.name)
        return done


def _told(params: OpenParams) -> dict[str, object]:
    """What of the parameters is set, as JSON has it."""
    return {
        name: value for name, value in msgspec.structs.asdict(params).items() if value is not None
    }
