"""The CPU time of a server on this machine: its process and the processes it started."""

from __future__ import annotations

import asyncio
import urllib.request
from urllib.parse import urlsplit

import msgspec

from clients.errors import ClientError
from clients.options import SessionOptions, is_loopback, realtime_url

_HEALTH_S = 5.0


class _Health(msgspec.Struct):
    pid: int | None = None


class ServerCpu:
    """Seconds of CPU that a process and its descendants have used."""

    def __init__(self, pid: int) -> None:
        """Raises ClientError if there is no such process or psutil isn't installed."""
        try:
            import psutil
        except ImportError:
            raise ClientError("measuring the server's CPU needs the package psutil") from None
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise ClientError(f"there is no process {pid} here") from None

    def seconds(self) -> float:
        """User and system time so far."""
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


async def server_pid(options: SessionOptions) -> int | None:
    """The server's process id by its `/health`; None if it is on another machine or won't say."""
    url = realtime_url(options)
    if not is_loopback(url):
        return None
    scheme, host, *_ = urlsplit(url)
    address = f"{'https' if scheme == 'wss' else 'http'}://{host}/health"
    try:
        return await asyncio.to_thread(_ask, address)
    except (OSError, msgspec.MsgspecError):
        return None


def _ask(address: str) -> int | None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(address, timeout=_HEALTH_S) as answer:
        return msgspec.json.decode(answer.read(), type=_Health).pid
