"""What all handlers of one server share."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web

from duplex.config import ServeConfig
from duplex.runtime import Runtime
from web.auth import Keys, Origins
from web.desk import Desk, LocalDesk
from web.secrets import Secret
from web.workers.siblings import Siblings


@dataclass(slots=True)
class WebCounters:
    """What the sockets count; sessions and engine count their own."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    paused_reads: int = 0
    """Times that reading paused because messages came too fast."""
    stalled_writes: int = 0
    """Connections ended because they took nothing for the write timeout."""
    malformed: int = 0
    """Connections that sent what is no HTTP."""
    early_samples: int = 0
    """Samples of audio that came before their session was ready, and were dropped."""
    calls_ended: Counter[str] = field(default_factory=Counter)
    """WebRTC calls, by why their peer ended."""
    call_samples: Counter[str] = field(default_factory=Counter)
    """Samples at 24 kHz of calls that have ended, by what became of them."""
    call_packets_refused: int = 0
    """RTP and RTCP packets of calls that have ended, from more sources than a call may have."""
    robot_requests: Counter[str] = field(default_factory=Counter)
    """Robots' messages, by what answered them: a reply, `invalid` or `failed`."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests refused before they reached a session, by error code."""


@dataclass(slots=True)
class Context:
    """The parts that handlers use, in one place."""

    config: ServeConfig
    runtime: Runtime
    keys: Keys
    origins: Origins
    desk: Desk
    siblings: Siblings | None = None
    """The other processes of this server, if there are any."""
    counters: WebCounters = field(default_factory=WebCounters)
    started_at: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time of the start: when the served model came up."""

    @classmethod
    def of(
        cls,
        config: ServeConfig,
        runtime: Runtime,
        desk: Desk | None = None,
        siblings: Siblings | None = None,
    ) -> Context:
        """The context that `config` describes; with a desk of its own unless it is given one."""
        return cls(
            config=config,
            runtime=runtime,
            keys=Keys(key.get_secret_value() for key in config.api_keys),
            origins=Origins(config.allowed_origins, by_any_name=bool(config.api_keys)),
            desk=desk or LocalDesk(config, runtime.clock),
            siblings=siblings,
        )


CONTEXT = web.AppKey("context", Context)
CLIENT = web.RequestKey("client", str)
"""Who sent a request: the digest of its key or, where no keys are set, its address."""
SECRET = web.RequestKey("secret", Secret)
"""The client secret that a request came with; absent if it came with a key or without."""
