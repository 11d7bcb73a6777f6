"""The messages of an engine in a process: length-prefixed msgpack on one socket.

Everything but the frames themselves goes this way, doorbells included, so all of it arrives in
the order in which it was sent.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from engine.api import EngineError, EngineSpec
from engine.messages import Live, Order, Refused, SlotsChanged, StatsTaken
from engine.shm import Batch
from engine.stages.messages import JobEnded, JobFailed, Produced

LIMIT = 1 << 28
"""Bytes of the largest message: a voice's recording of some minutes is far below."""
_PREFIX = 4


class Fed(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Frames that lie in the ring downwards, fed at `arrived`."""

    batch: Batch
    arrived: float
    video: list[tuple[bytes, ...]] = []
    """The images of each frame, or none at all when no frame has any."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is there, and the rings have their size."""

    spec: EngineSpec


class Ended(msgspec.Struct, frozen=True):
    """A lease that the engine has ended at this frame."""

    lease: int
    epoch: int
    index: int
    error: str


class Stepped(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One step's outputs, which lie in the ring upwards."""

    batch: Batch
    step_s: float
    rows: int
    text: list[str] = []
    """One for each output, or none at all when all are empty."""
    ended: list[Ended] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine's last words."""

    message: str


Down = Fed | Order
Up = (
    Loaded
    | Stepped
    | Live
    | Refused
    | StatsTaken
    | SlotsChanged
    | Produced
    | JobEnded
    | JobFailed
    | Failed
)

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """A message with its length before it. Raises EngineError if it is over LIMIT."""
    buffer = bytearray(_PREFIX)
    _encoder.encode_into(message, buffer, _PREFIX)
    size = len(buffer) - _PREFIX
    if size > LIMIT:
        raise EngineError(f"{type(message).__name__} of {size} bytes is over {LIMIT}")
    buffer[:_PREFIX] = size.to_bytes(_PREFIX, "little")
    return bytes(buffer)


class Unpacker(Generic[M]):
    """Cuts a stream of bytes into messages of one direction."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def push(self, data: bytes) -> list[M]:
        """Takes in what the socket gave; returns the messages that are whole now."""
        rest = self._rest
        rest += data
        messages: list[M] = []
        at = 0
        with memoryview(rest) as view:
            while len(rest) - at >= _PREFIX:
                start = at + _PREFIX
                end = start + int.from_bytes(view[at:start], "little")
                if end > len(rest):
                    break
                messages.append(self._decoder.decode(view[start:end]))
                at = end
        del rest[:at]
        return messages


def down() -> Unpacker[Down]:
    """For the engine's process."""
    return Unpacker(msgspec.msgpack.Decoder(Down))


def up() -> Unpacker[Up]:
    """For its owner."""
    return Unpacker(msgspec.msgpack.Decoder(Up))
