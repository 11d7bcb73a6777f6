"""An engine that another process runs, and more than this one use.

The engine's starter holds the listening socket, so whoever connects while the engine loads, or
starts again, waits in line there.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from engine.api import EngineError
from engine.backoff import Backoff
from engine.gate import Gate
from engine.link import ChannelLink, ring_memory
from engine.messages import Event
from engine.supervisor import Place, SupervisedEngine


class AttachedEngine(SupervisedEngine):
    """Implements `engine.api.Engine` beside others, with rings of its own.

    If the engine dies its leases are over, and the next one is connected to after a wait that
    `backoff` gives.
    """

    def __init__(
        self, path: str, *, backoff: Backoff | None = None, place: Place | None = None
    ) -> None:
        """`path`: of the listening socket. Chat is asked of the engine's starter."""

        async def launch(take: Callable[[Event], None], _: Gate) -> ChannelLink:
            return await _attach(path, take)

        super().__init__(launch, backoff or Backoff(), place=place)


async def _attach(path: str, take: Callable[[Event], None]) -> ChannelLink:
    """Connects, and waits until the model is there. Raises EngineError if nobody listens."""
    link = ChannelLink(take)
    try:
        with contextlib.ExitStack() as stack:
            memory = ring_memory(stack)
            ours = socket.socket(socket.AF_UNIX)
            try:
                ours.connect(path)
                socket.send_fds(ours, [b"\0"], memory)
            except OSError:
                ours.close()
                raise
            await link.connect(ours)
            try:
                await link.until_loaded(memory)
            except BaseException:
                await link.stop()
                raise
    except OSError as error:
        raise EngineError(f"the engine can't be reached: {error}") from error
    return link
