"""Servers to measure: Python processes of their own, under the address they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clients.errors import ClientError

_STOP_S = 20.0


@contextmanager
def server(*arguments: str, **environ: str) -> Iterator[str]:
    """Starts a Python process and gives the address it prints first, as ws://host:port."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"} | environ,
    ) as process:
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def serving(model: str, sessions: int, **environ: str) -> Iterator[str]:
    """`duplex serve MODEL` with so many slots, on a port of its own. It takes a caller for each,
    however late frames are then: that is to be measured. Raises ClientError if it ends before it
    serves; why, it has said on standard error.
    """
    serve = ("serve", model, "--max-sessions", str(sessions), "--port", "0")
    environ = {"DUPLEX_ADMISSION": "slots"} | environ
    with server("-c", "from duplex.cli import main; main()", *serve, **environ) as url:
        yield url


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("ws://"):
                return "ws://" + word.removeprefix("ws://").partition("/")[0]
    raise ClientError(f"the server ended with {process.wait()} and said no address")
