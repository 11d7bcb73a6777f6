"""Makes the echo model of a child process misbehave on demand; Python imports it at its start."""

import ctypes
import signal
import time
from collections.abc import Iterator, Sequence

import engine.echo
from engine.api import OpenParams, Pcm
from engine.model import StepResult

RAISE, HANG, TALK, SLEEP = -1.0, -2.0, -3.0, -4.0
"""First samples of frames that break, block or enrich the step."""


class FaultyEcho(engine.echo.EchoModel):
    def check(self, params: OpenParams) -> None:
        if params.voice is not None:
            super().check(params)

    def prefill(self, row: int, params: OpenParams) -> Iterator[None]:
        if params.persona == "fail":
            raise RuntimeError("prefill broke")
        while params.persona == "forever":
            time.sleep(0.001)
            yield

    def step(self, rows: Sequence[int], pcm: Pcm) -> StepResult:
        first = pcm[:, 0]
        if RAISE in first:
            raise RuntimeError("the device is gone")
        if HANG in first or SLEEP in first:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # A sign for the test.
            if SLEEP in first:
                time.sleep(60)
            ctypes.PyDLL(None).sleep(60)  # Holds the interpreter's lock: no other thread runs.
        result = super().step(rows, pcm)
        text = ["wörter " * 40_000 if sample == TALK else "" for sample in first]
        return StepResult(pcm=result.pcm, heard=result.heard, text=text)


engine.echo.EchoModel = FaultyEcho
