"""What tests of both engines share: frames, and a reader of steps."""

import asyncio
from collections import defaultdict
from types import TracebackType

import numpy as np

from engine.api import Engine, EngineLost, Frame, Lease, StepOutput
from engine.echo import FRAME_SIZE

HANGS_S = 30
"""What hasn't come by then never comes."""


def frame(lease: int, index: int = 0, epoch: int = 0) -> Frame:
    return Frame(lease, epoch, index, np.full(FRAME_SIZE, lease + index / 100, np.float32))


class Reader:
    """Reads an engine's steps in a task, across its deaths, and lets tests wait for outputs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.steps: list[list[StepOutput]] = []
        self.by_lease: dict[int, list[StepOutput]] = defaultdict(list)
        self.losses: list[EngineLost] = []
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> "Reader":
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.engine.stop()
        await asyncio.wait_for(self._task, HANGS_S)

    async def outputs(self, lease: Lease, count: int) -> list[StepOutput]:
        """Waits until the lease has given so many outputs."""
        async with asyncio.timeout(HANGS_S), self._changed:
            await self._changed.wait_for(lambda: len(self.by_lease[lease.id]) >= count)
        return self.by_lease[lease.id]

    async def loss(self, count: int = 1) -> EngineLost:
        """Waits for a death of the engine."""
        async with asyncio.timeout(HANGS_S), self._changed:
            await self._changed.wait_for(lambda: len(self.losses) >= count)
        return self.losses[-1]

    async def _read(self) -> None:
        while True:
            try:
                async for outputs in self.engine.steps():
                    async with self._changed:
                        self.steps.append(outputs)
                        for output in outputs:
                            self.by_lease[output.lease].append(output)
                        self._changed.notify_all()
                return
            except EngineLost as error:
                async with self._changed:
                    self.losses.append(error)
                    self._changed.notify_all()


async def until_ready(engine: Engine, restarts: int) -> None:
    """Waits until the engine has been started again so many times."""
    async with asyncio.timeout(HANGS_S):
        while not engine.ready or (await engine.stats()).restarts < restarts:
            await asyncio.sleep(0.005)
