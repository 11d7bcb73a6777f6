"""The engine's end of the line to an owner in another process: a socket and two rings."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import numpy as np

from engine.api import EngineSpec, Frame, StepOutput
from engine.channel import Down, Ended, Fed, Stepped, down, pack
from engine.messages import Command, Event, Feed, Outputs
from engine.shm import Ring

_READ_BYTES = 1 << 18


class OwnerPort:
    """Implements `engine.serve.Port` for the only owner."""

    def __init__(self, channel: socket.socket, memory: tuple[int, int], spec: EngineSpec) -> None:
        """`memory`: descriptors of the rings down and up, which get their size here."""
        self.channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._unpacker = down()
        self._frames, self._outputs = (Ring(file, spec, create=True) for file in memory)
        self._silence = np.zeros(spec.frame_size, np.float32)

    def receive(self, *, wait_s: float | None) -> Sequence[Command] | None:
        """What has come in, in order; waits so long for something, None for ever. None: the owner
        is gone.
        """
        if wait_s:
            self._poll.poll(1000 * wait_s)
        try:
            data = self.channel.recv(_READ_BYTES, 0 if wait_s is None else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        if not data:
            return None
        return [self._understood(message) for message in self._unpacker.push(data)]

    def send(self, event: Event) -> None:
        """Tells the owner; waits for it if it is far behind."""
        self.channel.sendall(self._packed(event))

    def core_lease(self, lease: int) -> int:
        """What the engine calls a lease of the owner's."""
        return lease

    def own_lease(self, lease: int) -> int:
        """What the owner calls a lease of the engine's."""
        return lease

    def close(self) -> None:
        """Hangs up."""
        self.channel.close()
        self._frames.close()
        self._outputs.close()

    def _understood(self, message: Down) -> Command:
        if not isinstance(message, Fed):
            return message
        fields, pcm = self._frames.read(message.batch)
        named = self.core_lease
        video = message.video or [()] * len(fields)
        frames = [
            Frame(named(f[0]), f[1], f[2], sound, images)
            for f, sound, images in zip(fields, pcm, video, strict=True)
        ]
        return Feed(frames, message.arrived)

    def _packed(self, event: Event) -> bytes:
        return pack(self._put_in(event.outputs) if isinstance(event, Outputs) else event)

    def _put_in(self, outputs: Sequence[StepOutput]) -> Stepped:
        stepped = [output for output in outputs if not output.error]
        named = self.own_lease
        batch = self._outputs.write(
            [
                (named(o.lease), o.epoch, o.index, o.pcm is not None, int(o.wait_s * 1e9))
                for o in stepped
            ],
            [self._silence if o.pcm is None else o.pcm for o in stepped],
        )
        text = [output.text for output in stepped]
        timings = outputs[0].timings
        return Stepped(
            batch,
            timings.step_s,
            timings.rows,
            text if any(text) else [],
            [Ended(named(o.lease), o.epoch, o.index, o.error) for o in outputs[len(stepped) :]],
        )
