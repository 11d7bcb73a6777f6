"""The process of a language model: `python -m engine.stages.vllm.worker SOCKET CONFIG`.

SOCKET is an inherited descriptor, CONFIG a VllmConfig as JSON. The process leads a group of its
own, with vLLM's; it ends when its owner hangs up, and the group with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from engine.api import BadParams, EngineError
from engine.channel import Unpacker, pack
from engine.stages.messages import (
    WINDOW,
    AbortJob,
    Grant,
    JobCommand,
    JobEnded,
    JobFailed,
    Produced,
    StartJob,
)
from engine.stages.metrics import Stopwatch
from engine.stages.values import StageEnd
from engine.stages.vllm.chat_model import ChatModel
from engine.stages.vllm.group import kill_group
from engine.stages.vllm.messages import Failed, Gauges, Loaded, VllmConfig, VllmEvent

logger = logging.getLogger(__name__)

NICENESS: Final = 10
"""On a shared CPU a conversation's step goes before a token."""
_LOOK_S: Final = 1.0
"""Between two looks whether vLLM still lives."""


class Credit:
    """The pieces that a job may still make."""

    def __init__(self) -> None:
        self._left = WINDOW
        self._more = asyncio.Event()

    def add(self, pieces: int) -> None:
        """Its reader has taken some."""
        self._left += pieces
        self._more.set()

    async def take(self) -> None:
        """Waits until one may be made. Meanwhile vLLM merges what it makes into the next."""
        while not self._left:
            self._more.clear()
            await self._more.wait()
        self._left -= 1


class _Worker(asyncio.Protocol):
    """Jobs as they come, one task each; the end with the owner."""

    def __init__(self, config: VllmConfig) -> None:
        self._stage = config.stage
        self._unpacker = Unpacker(msgspec.msgpack.Decoder(JobCommand))
        self._transport: asyncio.WriteTransport
        self._jobs: dict[int, tuple[asyncio.Task[None], Credit]] = {}
        self._model: ChatModel | None = None
        self._running = 0
        self._told: Gauges | None = None
        self.ended = asyncio.Event()

    def serve(self, model: ChatModel) -> None:
        """The model is there: jobs may come."""
        self._model = model
        self.tell(Loaded())

    def tell(self, event: VllmEvent) -> None:
        """Tells the owner; in vain if it is gone."""
        if not self._transport.is_closing():
            self._transport.write(pack(event))

    def observe(self, running: int) -> None:
        """vLLM has made a step with so many requests."""
        self._running = running
        self._tell_gauges()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for command in self._unpacker.push(data):
            match command:
                case StartJob(job=job):
                    credit = Credit()
                    task = asyncio.create_task(self._run(command, credit))
                    self._jobs[job] = task, credit
                    task.add_done_callback(functools.partial(self._forget, job))
                case AbortJob(job=job) if job in self._jobs:
                    self._jobs[job][0].cancel()
                case Grant(job=job, pieces=pieces) if job in self._jobs:
                    self._jobs[job][1].add(pieces)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    async def _run(self, start: StartJob, credit: Credit) -> None:
        assert self._model is not None
        job, watch = start.job, Stopwatch(time.monotonic())
        try:
            async with contextlib.aclosing(self._model.answer(start.given.request)) as answer:
                async for output in answer:
                    if isinstance(output, StageEnd):
                        times = watch.stop(self._stage, time.monotonic())
                        self.tell(JobEnded(job, output, times))
                    else:
                        watch.output(time.monotonic())
                        await credit.take()
                        self.tell(Produced(job, output))
                    self._tell_gauges()
        except BadParams as error:
            self.tell(JobFailed(job, str(error), error.field))
        except Exception as error:
            if self._model.error is not None:
                self.ended.set()
                return  # with all other jobs
            if not isinstance(error, EngineError):
                logger.exception("job %d failed", job)
            self.tell(JobFailed(job, f"{type(error).__name__}: {error}"))

    def _forget(self, job: int, task: asyncio.Task[None]) -> None:
        del self._jobs[job]
        self._tell_gauges()

    def _tell_gauges(self) -> None:
        if self._model is not None:
            unfinished = self._model.unfinished
            gauges = Gauges(unfinished, min(self._running, unfinished))
            if gauges != self._told:
                self._told = gauges
                self.tell(gauges)


async def run(channel: socket.socket, config: VllmConfig) -> None:
    """Loads and serves until the owner hangs up or vLLM fails."""
    worker = _Worker(config)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: worker, sock=channel)
    try:
        model = await ChatModel.load(config, worker.observe)
    except Exception as error:
        logger.exception("the language model can't be loaded")
        worker.tell(Failed(f"{type(error).__name__}: {error}"))
        return
    worker.serve(model)
    while not worker.ended.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.ended.wait(), _LOOK_S)
        if model.error is not None:
            worker.tell(Failed(f"vLLM has failed: {model.error}"))
            return


def _end_with_owner(channel: socket.socket) -> None:
    """Also while vLLM loads, which holds up the event loop."""
    poller = select.poll()
    poller.register(channel, 0)  # no event but the one that can't be masked: POLLHUP
    poller.poll()
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid(), spare=os.getpid())
    os._exit(0)


def _be_nice() -> None:
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # where Linux shares out the CPU by sessions first
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def main(arguments: Sequence[str]) -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _be_nice()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s vllm %(name)s: %(message)s")
    descriptor = int(arguments[0])
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    threading.Thread(target=_end_with_owner, args=(channel,), daemon=True).start()
    asyncio.run(run(channel, msgspec.json.decode(arguments[1], type=VllmConfig)))


if __name__ == "__main__":
    main(sys.argv[1:])
