"""Talk to nano case by case: `python -m recipes.nano.evaluate DIR [--model DIR] [--json]`.

DIR holds `cases.json`, a list of `{"wav": audio file, "kind": greet, sum, stop, silent, ...,
"expect": regular expression for the whole lower-case transcript, "stop_end_s": where the word that
stops it ends}`; other keys are ignored. A stop is right if the count had begun and nothing above
-42 dBFS leaves more than 0.5 s after that word; a silent case if there is neither word nor sound.
Every case is a session of its own with default settings, fed one 80 ms frame after another; what
frame i gives is heard while frame i + 1 is spoken, so the model's delay counts in every latency.
"""

import asyncio
import json
import multiprocessing as mp
import re
import sys
import wave
import zlib
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from engine.api import EngineConfig, Frame, OpenParams
from engine.inprocess import InProcessEngine
from engine.registry import build_model

LOUD = 10 ** (-42 / 20)
WINDOW_S = 0.02
STOP_LIMIT_S = 0.5
QUIET_S, MOST_EXTRA_S = 2.0, 30.0
Pcm = NDArray[np.float32]


@dataclass
class Reply:
    """What the agent said: its words, its sound as the caller hears it, when it was audible.

    `pcm[t]` is heard at sample t of the caller's clock: one frame of delay is included.
    """

    text: str
    pcm: Pcm
    rate: int
    words: list[tuple[float, str]] = field(default_factory=list)

    def loud_spans(self) -> tuple[float, float] | None:
        """First and last moment (seconds) above -42 dBFS, in 20 ms windows; None for silence."""
        n = int(WINDOW_S * self.rate)
        frames = self.pcm[: len(self.pcm) // n * n].reshape(-1, n)
        loud = np.flatnonzero(np.sqrt((frames**2).mean(1)) > LOUD)
        return (float(loud[0]) * WINDOW_S, float(loud[-1] + 1) * WINDOW_S) if len(loud) else None


@dataclass
class Verdict:
    """How a case went. `latency_s`: from the end of the stop word to the agent's last sound."""

    wav: str
    kind: str
    right: bool
    heard: str
    expect: str
    latency_s: float | None = None


def judge(case: dict[str, Any], reply: Reply) -> Verdict:
    """Compare a reply with what its case expects."""
    kind, spans = case["kind"], reply.loud_spans()
    verdict = Verdict(case["wav"], kind, False, reply.text, case.get("expect", ""))
    if kind == "stop":
        begun = spans is not None and spans[0] < case["stop_end_s"] and reply.text != ""
        if spans is not None:
            verdict.latency_s = round(float(spans[1]) - case["stop_end_s"], 3)
        verdict.right = begun and (verdict.latency_s or 0) <= STOP_LIMIT_S
    elif kind == "silent":
        verdict.right = not reply.text and spans is None
    else:
        verdict.right = re.fullmatch(case["expect"], reply.text) is not None
    return verdict


class Talker:
    """Runs sessions on one engine; `together` of them at a time."""

    def __init__(self, model: str, threads: int, together: int) -> None:
        config = EngineConfig(model=model, slots=together, threads=threads, device="cpu", seed=0)
        self._engine = InProcessEngine(lambda: build_model(config), config)
        self._waiting: dict[int, asyncio.Queue[Any]] = {}

    async def start(self) -> None:
        await self._engine.start()
        self._router = asyncio.create_task(self._route())

    async def stop(self) -> None:
        self._router.cancel()
        await self._engine.stop()

    async def _route(self) -> None:
        async for outputs in self._engine.steps():
            for output in outputs:
                if output.lease in self._waiting:
                    self._waiting[output.lease].put_nowait(output)

    async def talk(self, pcm: Pcm, seed: int) -> Reply:
        """One session: feed `pcm`, then silence until the agent has been quiet for a while."""
        spec = self._engine.spec
        size, rate = spec.frame_size, spec.sample_rate
        lease = await self._engine.open(OpenParams(seed=seed if spec.sampling else None))
        queue = self._waiting[lease.id] = asyncio.Queue()
        spoken = -(-len(pcm) // size)
        most = spoken + int(MOST_EXTRA_S / spec.frame_s)
        padded = np.concatenate([pcm, np.zeros((most * size) - len(pcm), np.float32)])
        sound: list[Pcm] = [np.zeros(size, np.float32)]
        words: list[tuple[float, str]] = []
        last = 0
        for i in range(most):
            frame = padded[i * size : (i + 1) * size].astype(np.float32)
            self._engine.feed([Frame(lease=lease.id, epoch=0, index=i, pcm=frame)])
            output = await queue.get()
            if output.error:
                raise RuntimeError(output.error)
            heard = np.zeros(size, np.float32) if output.pcm is None else output.pcm
            sound.append(np.asarray(heard, np.float32))
            if output.text:
                words.append((round((i + 1) * spec.frame_s, 2), output.text))
            if output.text or np.sqrt((sound[-1] ** 2).mean()) > LOUD / 2:
                last = i
            if i >= spoken and i - last > QUIET_S / spec.frame_s:
                break
        await self._engine.close(lease)
        del self._waiting[lease.id]
        text = "".join(w for _, w in words).strip().lower()
        return Reply(re.sub(r"\s+", " ", text), np.concatenate(sound), rate, words)


async def evaluate(
    cases: list[dict[str, Any]],
    folder: Path,
    model: str,
    *,
    threads: int,
    together: int,
    save: Path | None,
) -> list[Verdict]:
    """Run cases of a folder; the wrong ones are told on stderr as they come."""
    from media.files import read_audio

    talker = Talker(model, threads, together)
    await talker.start()
    rate = talker._engine.spec.sample_rate
    free = asyncio.Semaphore(together)

    async def run(case: dict[str, Any]) -> Verdict:
        async with free:
            seed = zlib.crc32(case["wav"].encode())  # the case's own, whatever runs beside it
            reply = await talker.talk(read_audio(str(folder / case["wav"]), rate), seed)
            if save is not None:
                write_wav(save / Path(case["wav"]).with_suffix(".wav").name, reply)
            verdict = judge(case, reply)
            if not verdict.right:
                print(describe(verdict), file=sys.stderr, flush=True)
            return verdict

    verdicts = await asyncio.gather(*(run(case) for case in cases))
    await talker.stop()
    return list(verdicts)


def evaluate_all(folder: Path, model: str, workers: int, **options: Any) -> list[Verdict]:
    """Run every case of a folder, in its order; processes with an engine each share the work."""
    cases = json.loads((folder / "cases.json").read_text())
    run = partial(_evaluate, folder, model, options)
    workers = min(workers, len(cases))
    if workers < 2:
        return run(cases)
    with ProcessPoolExecutor(workers, mp_context=mp.get_context("spawn")) as pool:
        parts = list(pool.map(run, [cases[i::workers] for i in range(workers)]))
    return [parts[i % workers][i // workers] for i in range(len(cases))]


def _evaluate(
    folder: Path, model: str, options: dict[str, Any], cases: list[dict[str, Any]]
) -> list[Verdict]:
    return asyncio.run(evaluate(cases, folder, model, **options))


def write_wav(path: Path, reply: Reply) -> None:
    with wave.open(str(path), "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(reply.rate)
        w.writeframes((reply.pcm * 32767).astype(np.int16).tobytes())


def describe(v: Verdict) -> str:
    """One line about a case."""
    late = f", {v.latency_s} s" if v.latency_s is not None else ""
    return f"{v.wav}: heard {v.heard!r}, expected {v.expect!r}{late}"


def report(verdicts: list[Verdict]) -> list[str]:
    """A line a kind, stop latencies and the total."""
    by_kind: dict[str, list[Verdict]] = defaultdict(list)
    for v in verdicts:
        by_kind[v.kind].append(v)
    lines = []
    for kind, group in by_kind.items():
        line = f"{kind:10s} n={len(group):3d} right {sum(v.right for v in group) / len(group):.3f}"
        late = [v.latency_s for v in group if v.right and (v.latency_s or 0) > 0]
        if kind == "stop" and late:
            p50, p95 = np.percentile(np.array(late, float), [50, 95])
            line += f"  latency p50 {p50:.2f} s, p95 {p95:.2f} s"
        lines.append(line)
    lines.append(f"overall {sum(v.right for v in verdicts)}/{len(verdicts)}")
    return lines


def main(
    folder: Path,
    *,
    model: Annotated[str, typer.Option(help="packaged model or directory")] = "nano",
    as_json: Annotated[bool, typer.Option("--json", help="print verdicts as JSON")] = False,
    threads: int = 2,
    together: Annotated[int, typer.Option(help="sessions at a time, for a quick look")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="processes with an engine each")] = 1,
    save: Annotated[Path | None, typer.Option(help="write the replies here as WAV")] = None,
) -> None:
    """Evaluate a model directory on a folder of cases."""
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    verdicts = evaluate_all(folder, model, workers, threads=threads, together=together, save=save)
    if save is not None:
        (save / "verdicts.json").write_text(json.dumps([asdict(v) for v in verdicts], indent=1))
    lines = report(verdicts)
    if as_json:
        print(json.dumps({"cases": [asdict(v) for v in verdicts]}))
        print(lines[-1])
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)
