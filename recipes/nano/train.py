"""All of nano's training on one GPU: `python -m recipes.nano.train CLIPS OUT`.

The codec first; then its decoder and the language model beside each other; then the export to
`OUT/nano`, after which `python -m recipes.nano.evaluate` says what came of it. What a stage prints
goes to `OUT/STAGE.log`. A stage whose result is there is not run again, so that a training goes on
where it was interrupted; the recordings must be the same then.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recipes.nano.clips import SAVED, made_of

console = Console(width=120)
TOKENIZER = Path(__file__).parents[2] / "engine/zoo/nano/tokenizer.model"


class Stage:
    """A module of the recipe in a process of its own, unless its result is there."""

    def __init__(self, out: Path, module: str, result: str, *arguments: object) -> None:
        self._log, self._result = out / f"{Path(result).parts[0]}.log", out / result
        self._name, self._process = module, None
        self._begin = time.monotonic()
        if self._result.exists():
            return
        command = [sys.executable, "-m", f"recipes.nano.{module}", *map(str, arguments)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"TERM": "dumb"} | os.environ,
                start_new_session=True,  # so that it ends with all that it has started
            )

    def done(self) -> bool:
        """Has it ended? Raises typer.Exit, having shown the end of the log, if it failed."""
        if self._process is None:
            console.print(f"{self._name}: {self._result} is there")
            return True
        if (code := self._process.poll()) is None:
            return False
        if code != 0 or not self._result.exists():
            tail = self._log.read_text(errors="replace").splitlines()[-20:]
            console.print("\n".join([f"{self._name} failed; {self._log} ends with:", *tail]))
            raise typer.Exit(1)
        console.print(f"{self._name}: {time.monotonic() - self._begin:.0f} s")
        return True

    def stop(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Run:
    """Stages one after another or beside each other; none of them outlives it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._stages: list[Stage] = []
        self._before = signal.getsignal(signal.SIGTERM)

    def __enter__(self) -> "Run":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        for stage in self._stages:
            stage.stop()

    def start(self, module: str, result: str, *arguments: object) -> None:
        self._stages.append(Stage(self._out, module, result, *arguments))

    def wait(self) -> None:
        """Returns once all have ended. Raises typer.Exit as soon as one fails."""
        while self._stages:
            ended = [stage for stage in self._stages if stage.done()]
            self._stages = [stage for stage in self._stages if stage not in ended]
            if not ended:
                time.sleep(0.1)


def main(
    clips: Annotated[Path, typer.Argument(help="recordings, packed or not")],
    out: Annotated[Path, typer.Argument(help="where all of it goes")],
    *,
    codec_seconds: float = 380,
    decoder_seconds: float = 230,
    lm_seconds: float = 590,
    workers: Annotated[int, typer.Option(help="processes that plan conversations")] = 12,
    codec_rows: Annotated[int | None, typer.Option(help="windows a codec batch")] = None,
    tiny: Annotated[bool, typer.Option(help="small batches of the language model")] = False,
    captured: Annotated[bool, typer.Option(help="steps as CUDA graphs")] = True,
    tokenizer: Path = TOKENIZER,
) -> None:
    """Train codec, decoder and language model, and make a model directory of them."""
    codec, decoder, lm = out / "codec", out / "decoder", out / "lm"
    heard = out / "clips"  # decoded
    if (heard / SAVED).exists() and not made_of(heard, clips):
        raise typer.BadParameter(f"{heard} was made of other recordings than {clips}: remove {out}")
    out.mkdir(parents=True, exist_ok=True)
    rows = ("--rows", codec_rows) if codec_rows else ()
    graphs = "--captured" if captured else "--no-captured"
    with Run(out) as run:
        run.start("clips", f"clips/{SAVED}", clips, heard)
        run.wait()
        run.start(
            "train_codec", "codec/codec_log.json",
            heard, codec, "--seconds", codec_seconds, *rows, graphs,
        )  # fmt: skip
        run.wait()
        run.start(
            "train_lm", "lm/lm_log.json",
            heard, codec, tokenizer, lm, "--seconds", lm_seconds, "--workers", workers,
            *(["--tiny"] if tiny else []), graphs,
        )  # fmt: skip
        run.start(
            "train_codec", "decoder/codec_log.json",
            heard, decoder, "--decoder-of", codec, "--seconds", decoder_seconds, *rows,
        )  # fmt: skip
        run.wait()
        run.start("export", "nano/config.json", decoder, lm, tokenizer, heard, out / "nano")
        run.wait()


if __name__ == "__main__":
    typer.run(main)
