"""Servers for tests: one in this process, one as a process of its own; and the real recording."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

if TYPE_CHECKING:
    from engine.api import Engine
    from web.server import Server

ROOT = Path(__file__).parents[1]

# How long an example takes, or its data to be drawn, says how busy the machine is and no more.
hypothesis_settings.register_profile(
    "whenever", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("whenever")

StartServer = Callable[..., AbstractAsyncContextManager["Server"]]
StartProcess = Callable[..., AbstractContextManager["ServerProcess"]]


def pytest_runtest_teardown() -> None:
    """A model that a test built in this thread has made it flush denormal numbers; undone here."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)


@pytest.fixture
def start_server() -> StartServer:
    """`async with start_server(max_sessions=2, **settings) as server`: echo, in this process."""
    from duplex.config import ServeConfig
    from duplex.runtime import Runtime
    from engine.inprocess import InProcessEngine
    from engine.registry import build_model
    from web.server import Server

    @asynccontextmanager
    async def start(*, engine: Engine | None = None, **settings: object) -> AsyncIterator[Server]:
        defaults = {"model": "echo", "port": 0, "max_sessions": 2, "resume_grace_s": 0}
        config = ServeConfig.model_validate(defaults | settings)
        if engine is None:
            told = config.engine()
            engine = InProcessEngine(lambda: build_model(told), told)
        runtime = Runtime(engine, resume_grace_s=config.resume_grace_s)
        async with Server(config, runtime) as server:
            yield server

    return start


class ServerProcess:
    """`duplex serve` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        self.process = process
        self.output: list[str] = []
        self.address = ""
        self._lines = lines

    def read_until(self, start: str, timeout_s: float = 60) -> str:
        """The next line that begins so; fails with all output when the process ends before."""
        while (line := self._lines.get(timeout=timeout_s)) is not None:
            self.output.append(line)
            if line.startswith(start):
                return line
        pytest.fail("the server ended:\n" + "".join(self.output))

    def rest(self) -> str:
        """What was said since the last line that was read, of a process that has ended."""
        lines = []
        while (line := self._lines.get(timeout=60)) is not None:
            lines.append(line)
        return "".join(lines)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Sends a signal and waits; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@pytest.fixture(scope="session")
def start_process() -> StartProcess:
    """`with start_process("echo", "--max-sessions", "2") as server`: waits until it serves.

    `before` is a command that runs the server's.
    """

    @contextmanager
    def start(
        *arguments: str, port: int = 0, before: tuple[str, ...] = (), **environ: str
    ) -> Iterator[ServerProcess]:
        kept = {name: value for name, value in os.environ.items() if "DUPLEX_" not in name}
        process = subprocess.Popen(
            [*before, sys.executable, "-c", "from duplex.cli import main; main()", "serve"]
            + [*arguments, "--port", str(port)],
            cwd=ROOT,
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        thread = threading.Thread(target=_pass_lines, args=(process, lines))
        thread.start()
        server = ServerProcess(process, lines)
        try:
            server.address = server.read_until("page").split()[1].rstrip("/")
            yield server
        finally:
            process.kill()
            process.wait()
            thread.join()
            assert process.stdout is not None
            process.stdout.close()

    return start


def _pass_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


@pytest.fixture
def recording() -> Path:
    """A real voice, where the recordings are at hand."""
    path = ROOT.parent / "shared/audio/input_assistant.wav"
    if not path.exists():
        pytest.skip("the recordings are not here")
    return path
