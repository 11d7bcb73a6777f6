"""The process of a media worker: `python -m duplex.cli.media_worker LINE FOLDER HOME`.

LINE is the inherited descriptor of its end of the line to the hub, FOLDER where the processes of
the server listen for each other, HOME its name among them. Its configuration comes on standard
input, since a command line is seen by everybody. It ends when the hub tells it to, or is gone;
SIGINT and SIGTERM, which shells and service managers send to whole groups, are left to the hub.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from uvloop import new_event_loop

import duplex
from duplex.allocator import keep_freed_memory
from duplex.config import ServeConfig
from duplex.runtime import Runtime
from engine.fleet import attached_engine
from web.workers.worker_server import WorkerServer

_STDERR = 2


async def start(
    config: ServeConfig, folder: Path, line: int, home: str
) -> asyncio.subprocess.Process:
    """Starts one. Raises OSError if that can't be done."""
    # Our own package, and never one of that name in the current directory (-P).
    paths = [str(Path(duplex.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-X", "faulthandler", "-m", "duplex.cli.media_worker"),
        *(str(line), str(folder), home),
        stdin=asyncio.subprocess.PIPE,
        stdout=_STDERR,
        pass_fds=(line,),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(config))
    process.stdin.close()
    return process


def main(arguments: Sequence[str]) -> None:
    """Serves until the hub tells it to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line, folder, home = arguments
    config: ServeConfig = pickle.load(sys.stdin.buffer)
    keep_freed_memory()
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s worker {home} %(name)s: %(message)s",
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(config, int(line), Path(folder), home))


async def _serve(config: ServeConfig, line: int, folder: Path, home: str) -> None:
    runtime = Runtime(
        attached_engine(config.engine(), folder),
        resume_grace_s=config.resume_grace_s,
        token_prefix=f"{home}.",
    )
    server = WorkerServer(config, runtime, line, folder, home)
    gc.collect()
    gc.freeze()  # what was loaded stays; collections need not walk through it
    await server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
