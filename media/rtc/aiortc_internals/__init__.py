"""Everything here reaches into aiortc's and aioice's private parts, and nothing else does.

- Its audio jitter buffer always holds 80 ms and after one loss 280 ms for good (aiortc issue 543);
  packets are taken before it, and its decoder stays idle.
- Each packet of audio wakes several of its tasks, both ways, and becomes several objects: a third
  of what a call costs. Ours go straight between the socket and the peer.
- Its queue of pictures to decode has no bound; ours does.
- Signs of life (any datagram), and what the caller has acknowledged, can be seen nowhere else.
- It waits for STUN and TURN servers that don't answer for 5 seconds, which can't be set.
- A `close` during the handshake leaves its task behind, and one that checks consent for ever; a
  `close` that hangs leaves sockets and threads. They can be ended from here.

Written against aiortc 1.16 and checked at import.
"""

from __future__ import annotations

from typing import Final

import aiortc

SUPPORTED: Final = (1, 16)

if tuple(int(part) for part in aiortc.__version__.split(".")[:2]) != SUPPORTED:
    raise ImportError(f"aiortc {aiortc.__version__} is not {SUPPORTED[0]}.{SUPPORTED[1]}")
