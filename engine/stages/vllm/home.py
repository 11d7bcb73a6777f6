"""vLLM's process, seen from the event loop: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.api import EngineLost, EngineUnavailable, NotServed
from engine.backoff import Backoff
from engine.channel import Unpacker, pack
from engine.gate import Gate
from engine.stages.config import StageConfig
from engine.stages.kinds import VllmOptions
from engine.stages.messages import JobCommand, JobEvent, StartJob
from engine.stages.values import StageStats
from engine.stages.vllm.group import end_group
from engine.stages.vllm.messages import (
    GATE_ENV,
    Failed,
    Gauges,
    Loaded,
    VllmConfig,
    VllmEvent,
)

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=1.0, longest_s=300.0)
"""Between the end of a process and the start of the next: loading is no small work."""
STOP_S: Final = 5.0
"""How long the processes may take to end once they are killed."""

WORKER: Final = "engine.stages.vllm.worker"
_READ_BYTES: Final = 1 << 18
_STDERR: Final = 2


class VllmHome:
    """Implements `engine.stages.service.StageHome` for one `vllm` stage."""

    def __init__(
        self,
        stage: str,
        config: StageConfig,
        gate: Gate,
        *,
        take: Callable[[JobEvent], None],
        lose: Callable[[EngineLost], None],
    ) -> None:
        self._config = VllmConfig(
            stage=stage,
            max_running=config.max_running,
            options=msgspec.convert(config.options, VllmOptions),
        )
        self._gate = gate
        self._take = take
        self._lose = lose
        self._installed = importlib.util.find_spec("vllm") is not None
        self._keeping: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._gauges = Gauges(0, 0)
        self._absent = "is still loading"
        self._loaded_at: float | None = None

    def start(self) -> None:
        """Begins to load; without vLLM there is nothing to begin."""
        if self._installed:
            self._keeping = asyncio.create_task(self._keep(), name="vllm")
        else:
            logger.warning("stage %s: vLLM is not installed; its requests get 501", self.stage)

    async def stop(self) -> None:
        """Ends the process. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    def send(self, command: JobCommand) -> None:
        """Tells the process. Raises EngineUnavailable or NotServed for a job it can't begin."""
        if self._writer is not None:
            self._writer.write(pack(command))
        elif isinstance(command, StartJob):
            if not self._installed:
                raise NotServed(
                    f"The stage {self.stage} needs vLLM: pip install 'duplex-media-server[vllm]'."
                )
            raise EngineUnavailable(f"the language model {self._absent}")

    @property
    def stage(self) -> str:
        """Its name."""
        return self._config.stage

    @property
    def stats(self) -> tuple[StageStats, ...]:
        """As vLLM has told them last."""
        waiting, running = self._gauges.unfinished - self._gauges.running, self._gauges.running
        return (StageStats(stage=self.stage, waiting=waiting, running=running),)

    async def _keep(self) -> None:
        failures = 0
        while True:
            self._loaded_at = None
            words = await self._live()
            lived_s = 0.0 if self._loaded_at is None else time.monotonic() - self._loaded_at
            failures = 0 if lived_s >= RETRY.longest_s else failures
            delay_s = RETRY.delay_s(failures)
            failures += 1
            self._absent = "is starting again" if lived_s else "can't be loaded; see the log"
            logger.error(
                "stage %s: vLLM is lost: %s; it starts again in %g s", self.stage, words, delay_s
            )
            self._lose(EngineLost(f"the language model is lost: {words}"))
            await asyncio.sleep(delay_s)

    async def _live(self) -> str:
        """One process, from its start to its end. Returns its last words."""
        ours, theirs = socket.socketpair()
        # the stream owns our end when there is one; until then nobody does
        with ours, tempfile.TemporaryDirectory(prefix="duplex-vllm-") as sockets:
            with theirs:
                process = await self._spawn(theirs.fileno(), sockets)
            try:
                words = await self._converse(ours)
            finally:
                self._writer = None
                self._gauges = Gauges(0, 0)
                await asyncio.shield(_see_off(process))
        return words or f"its process ended with code {process.returncode}"

    async def _converse(self, channel: socket.socket) -> str:
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        words, unpacker = "", Unpacker(msgspec.msgpack.Decoder(VllmEvent))
        try:
            while data := await reader.read(_READ_BYTES):
                for event in unpacker.push(data):
                    match event:
                        case Loaded():
                            self._writer = writer
                            self._loaded_at = time.monotonic()
                            logger.info("stage %s: the language model is ready", self.stage)
                        case Gauges():
                            self._gauges = event
                        case Failed(message=words):
                            pass
                        case _:
                            self._take(event)
        except ConnectionError as error:
            return words or str(error)
        finally:
            writer.close()
        return words

    async def _spawn(self, channel: int, sockets: str) -> asyncio.subprocess.Process:
        root = str(Path(__file__).parents[3])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        arguments = [str(channel), msgspec.json.encode(self._config).decode()]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STDERR,
            pass_fds=(channel,),
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "VLLM_RPC_BASE_PATH": sockets,
                GATE_ENV: self._gate.path,
            },
            start_new_session=True,  # so that it and vLLM's own processes can be ended together
        )


async def _see_off(process: asyncio.subprocess.Process) -> None:
    """Ends a process, and vLLM's own that it has started."""
    await asyncio.to_thread(end_group, process.pid, STOP_S)
    await process.wait()
