"""vLLM's process, seen from the event loop: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.api import EngineLost, EngineUnavailable, NotServed
from engine.channel import Unpacker, pack
from engine.stages.config import StageConfig
from engine.stages.kinds import VllmOptions
from engine.stages.messages import JobCommand, JobEvent, StartJob
from engine.stages.values import StageStats
from engine.stages.vllm.messages import Failed, Gauges, Loaded, VllmConfig, VllmEvent

logger = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""Between the end of a process and the start of the next: loading is no small work."""
STOP_S: Final = 5.0
"""How long a process may take to end when its owner hangs up."""

WORKER: Final = "engine.stages.vllm.worker"
_READ_BYTES: Final = 1 << 18
_STDERR: Final = 2


class VllmHome:
    """Implements `engine.stages.service.StageHome` for one `vllm` stage."""

    def __init__(
        self,
        stage: str,
        config: StageConfig,
        *,
        take: Callable[[JobEvent], None],
        lose: Callable[[EngineLost], None],
    ) -> None:
        self._config = VllmConfig(
            stage=stage,
            max_running=config.max_running,
            options=msgspec.convert(config.options, VllmOptions),
        )
        self._take = take
        self._lose = lose
        self._installed = importlib.util.find_spec("vllm") is not None
        self._keeping: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._gauges = Gauges(0, 0)

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
            raise EngineUnavailable("the language model is still loading")

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
        while True:
            words = await self._live()
            logger.error("stage %s: vLLM is lost: %s", self.stage, words)
            self._lose(EngineLost(f"the language model is lost: {words}"))
            await asyncio.sleep(RETRY_S)

    async def _live(self) -> str:
        """One process, from its start to its end. Returns its last words."""
        ours, theirs = socket.socketpair()
        with ours:  # the stream owns it in the end; until then nobody does
            with theirs:
                process = await self._spawn(theirs.fileno())
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

    async def _spawn(self, channel: int) -> asyncio.subprocess.Process:
        root = str(Path(__file__).parents[3])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        arguments = [str(channel), msgspec.json.encode(self._config).decode()]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STDERR,
            pass_fds=(channel,),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # so that it and vLLM's own processes can be ended together
        )


async def _see_off(process: asyncio.subprocess.Process) -> None:
    """Waits for a process whose channel is closed; then ends what is left of its group."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
