"""Ends the processes of a language model, whatever they are doing.

Left to themselves they would take seconds, most of it to tidy up memory that is given back anyway.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil

_LOOK_S = 0.02


def end_group(group: int, timeout_s: float) -> None:
    """Ends a group, the resource tracker too if it has not ended by itself after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while kill_group(group):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            return
        time.sleep(_LOOK_S)


def kill_group(group: int, *, spare: int = 0) -> bool:
    """Ends every process of a group but `spare`. True while any is left.

    The resource tracker of multiprocessing is left alone: it removes the shared memory of those
    that have ended, and ends by itself.
    """
    left = False
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.Error):
            if pid == spare or os.getpgid(pid) != group:
                continue
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            left = True
            if not any("resource_tracker" in word for word in process.cmdline()):
                os.kill(pid, signal.SIGKILL)
    return left
