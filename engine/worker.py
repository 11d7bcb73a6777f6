"""The process of an engine: `python -m engine.worker SOCKET DOWN UP CONFIG`.

The first three are inherited descriptors: the socket to the owner and the memory of the two rings;
the last is an EngineConfig as JSON. The process ends when the owner hangs up, whatever the model is
doing then. SIGINT and SIGTERM, which shells and service managers send to whole groups, are left to
the owner, who may want to drain first. What there is to say to people goes to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.api import EngineConfig, EngineError, EngineSpec, Frame, StepOutput
from engine.channel import Ended, Failed, Fed, Loaded, Stepped, down, pack
from engine.core import EngineCore
from engine.messages import Command, Event, Feed, Outputs, in_words
from engine.registry import build_model
from engine.serve import serve
from engine.shm import Ring
from engine.stages.kinds import build_stages

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 18


class _Port:
    """The engine's end of the socket and the rings."""

    def __init__(self, channel: socket.socket, memory: tuple[int, int], spec: EngineSpec) -> None:
        self._channel = channel
        self._unpacker = down()
        self._frames, self._outputs = (Ring(file, spec, create=True) for file in memory)
        self._silence = np.zeros(spec.frame_size, np.float32)

    def receive(self, *, wait: bool) -> Sequence[Command] | None:
        try:
            data = self._channel.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        if not data:
            return None
        return [
            self._taken_out(message) if isinstance(message, Fed) else message
            for message in self._unpacker.push(data)
        ]

    def send(self, event: Event) -> None:
        message = self._put_in(event.outputs) if isinstance(event, Outputs) else event
        self._channel.sendall(pack(message))

    def _taken_out(self, message: Fed) -> Feed:
        fields, pcm = self._frames.read(message.batch)
        frames = [Frame(f[0], f[1], f[2], sound) for f, sound in zip(fields, pcm, strict=True)]
        return Feed(frames, message.arrived)

    def _put_in(self, outputs: Sequence[StepOutput]) -> Stepped:
        stepped = [output for output in outputs if not output.error]
        batch = self._outputs.write(
            [(o.lease, o.epoch, o.index, o.pcm is not None, int(o.wait_s * 1e9)) for o in stepped],
            [self._silence if o.pcm is None else o.pcm for o in stepped],
        )
        text = [output.text for output in stepped]
        timings = outputs[0].timings
        return Stepped(
            batch,
            timings.step_s,
            timings.rows,
            text if any(text) else [],
            [Ended(o.lease, o.epoch, o.index, o.error) for o in outputs[len(stepped) :]],
        )


def _run(channel: socket.socket, memory: tuple[int, int], config: EngineConfig) -> None:
    core = EngineCore(
        build_model(config),
        config.slots,
        max_in_flight=config.max_in_flight,
        step_mode=config.step_mode,
        stages=build_stages(config.chat),
    )
    port = _Port(channel, memory, core.spec)
    for descriptor in memory:
        os.close(descriptor)
    channel.sendall(pack(Loaded(core.spec)))
    serve(core, port)


def _end_with_owner(channel: socket.socket) -> None:
    poller = select.poll()
    poller.register(channel, 0)  # No event but the one that can't be masked: POLLHUP.
    poller.poll()
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Runs until the owner is gone (0) or the engine has failed (1)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s engine %(name)s: %(message)s")
    channel = socket.socket(fileno=int(arguments[0]))
    channel.set_inheritable(False)
    threading.Thread(target=_end_with_owner, args=(channel,), daemon=True).start()
    memory = (int(arguments[1]), int(arguments[2]))
    config = msgspec.json.decode(arguments[3], type=EngineConfig)
    try:
        _run(channel, memory, config)
    except ConnectionError:
        return 0
    except Exception as error:
        if not isinstance(error, EngineError):
            logger.exception("the engine has failed")
        with contextlib.suppress(ConnectionError):
            channel.sendall(pack(Failed(in_words(error))))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
