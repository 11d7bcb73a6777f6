"""What aiohttp logs of a connection: what is no HTTP is one line and a count, not a traceback."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

from web.context import WebCounters


def connection_logger(counters: WebCounters) -> logging.Logger:
    """A logger for one server's connections; `counters` counts what was malformed."""
    root = logging.getLogger()
    logger = logging.Logger("web.connections", logging.DEBUG)  # of its own, not of the process
    logger.parent = root

    def pass_on(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            counters.malformed += 1
            peer = record.args[0] if isinstance(record.args, tuple) and record.args else "a peer"
            what = error.message.partition(":")[0]  # then it quotes, keys too
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = "%s sent what is no HTTP: %s", (peer, what)
        return record.levelno >= root.getEffectiveLevel()

    logger.addFilter(pass_on)
    return logger
