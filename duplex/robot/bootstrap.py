"""The script of a policy's process: `PYTHON bootstrap.py SOCKET MSGPACK`.

The interpreter may be any from Python 3.10 on, with NumPy. It gets this project's few modules that
it needs and nothing else of the environment that the server runs in: neither its packages nor its
torch. MSGPACK is the server's `msgpack`, for interpreters without one (it is plain Python where its
compiled part doesn't fit). The current directory is searched last for policies.

The process ends when its owner does. SIGINT and SIGTERM, which shells and service managers send to
whole groups, are left to the owner, who may want to drain first.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import select
import signal
import socket
import sys
import threading
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Serves a policy until the owner says stop (0), or is gone or the policy can't be had (1)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s policy %(name)s: %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    threading.Thread(target=_end_with_owner, args=(channel,), daemon=True).start()
    _prepare_imports(Path(sys.argv[2]))
    from duplex.robot.pipe import Kind, Message, Port

    port = Port(channel)
    try:
        from duplex.robot.worker import run
    except ImportError as error:
        words = f"{sys.executable} can't run policies: {error}"
        port.send(Message(Kind.UNABLE, payload=words.encode()))
        return 1
    try:
        run(port)
    except (EOFError, ConnectionError):
        return 1
    return 0


def _prepare_imports(msgpack: Path) -> None:
    sys.path[:] = [
        path for path in sys.path if Path(path or ".").resolve() != ROOT / "duplex/robot"
    ]
    sys.path.append(os.getcwd())
    for name in ("media", "engine", "duplex"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / name)]
        sys.modules[name] = package
    if importlib.util.find_spec("msgpack") is None:
        spec = importlib.util.spec_from_file_location("msgpack", msgpack / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["msgpack"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _end_with_owner(channel: socket.socket) -> None:
    poller = select.poll()
    poller.register(channel, 0)  # no event but the one that can't be masked: POLLHUP
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
