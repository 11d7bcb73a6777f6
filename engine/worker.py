"""The process of an engine: `python -m engine.worker SOCKET DOWN UP GATE LISTENER ENGINE CONFIG`.

The first five are inherited descriptors: the socket to the owner, the memory of the two rings and
of the gate, and a socket on which more owners may come, or -1. ENGINE says which engine this is to
the gate, CONFIG is an EngineConfig as JSON.
The process ends when the owner hangs up, whatever the model is doing then. SIGINT and SIGTERM,
which shells and service managers send to whole groups, are left to the owner, who may want to drain
first. What there is to say to people goes to stderr.
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

from engine.api import EngineConfig, EngineError
from engine.build import build_core
from engine.channel import Failed, Loaded, pack
from engine.gate import Gate
from engine.messages import in_words
from engine.owners import Owners
from engine.port import OwnerPort
from engine.registry import build_model
from engine.serve import Port, serve

logger = logging.getLogger(__name__)


def _run(
    channel: socket.socket,
    memory: tuple[int, int],
    gate: Gate,
    listener: socket.socket | None,
    config: EngineConfig,
) -> None:
    core = build_core(build_model(config), config)
    port: Port
    if listener is None:
        port = OwnerPort(channel, memory, core.spec)
    else:
        port = Owners(listener, channel, memory, core.spec)
    for descriptor in memory:
        os.close(descriptor)
    channel.sendall(pack(Loaded(core.spec)))
    serve(core, port, gate)


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
    gate = Gate(int(arguments[3]), int(arguments[5]))
    os.close(int(arguments[3]))
    listener = socket.socket(fileno=int(arguments[4])) if arguments[4] != "-1" else None
    config = msgspec.json.decode(arguments[6], type=EngineConfig)
    try:
        _run(channel, memory, gate, listener, config)
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
