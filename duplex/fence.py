"""The fence: under what circumstances an output was made, to tell the stale from the current."""

from __future__ import annotations

import msgspec


class Fence(msgspec.Struct, frozen=True, gc=False):
    """A frozen value that every output carries.

    The epoch moves on barge-in only; output of an older epoch is dropped once, at routing.
    """

    session_id: str
    epoch: int = 0
    turn: int = 0
    response: str | None = None

    def barge_in(self) -> Fence:
        """The fence after an interruption."""
        return msgspec.structs.replace(self, epoch=self.epoch + 1)

    def respond(self, response: str | None) -> Fence:
        """The fence of a new response, or of none."""
        return msgspec.structs.replace(self, response=response)

    def next_turn(self) -> Fence:
        """The fence after the user's turn was committed."""
        return msgspec.structs.replace(self, turn=self.turn + 1)

    def admits(self, epoch: int) -> bool:
        """Whether output made in `epoch` is current."""
        return epoch == self.epoch
