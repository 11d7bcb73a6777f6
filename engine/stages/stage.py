"""What a stage is to the engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from engine.stages.values import Piece, StageEnd, StageInput


class Stage(Protocol):
    """Work that an engine does in its own thread, a bounded piece at a time.

    Between two pieces live conversations are stepped, so a piece is what a ready frame may have
    to wait for: it should take a few milliseconds.
    """

    def run(self, given: StageInput) -> Generator[Piece | None, None, StageEnd]:
        """Answers one request: yields after each piece of work what it made, or None.

        May be closed between two pieces. An exception fails this request and no other; an
        EngineError is told in its own words.
        """
        ...
