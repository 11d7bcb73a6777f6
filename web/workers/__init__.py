"""Media workers: several processes that carry the callers of one server, before one engine.

```
                       ┌─ worker 0: sockets, peers, sessions ──┐ rings
 callers ─ TCP ─> hub ─┤  (an accepted socket, by SCM_RIGHTS)  ├──────> engine
    ╰──── UDP (ICE) ───┴─ worker 1: sockets, peers, sessions ──┘
```

The hub is the process that was started. It listens, starts the engine and the workers, and carries
no media. A worker owns its connections, peers, sessions and the rings to the engine whole, so a
frame goes the same way as in a server of one process.

**One port.** The hub accepts and hands each connection to the worker that carries the fewest
(`door`, `line`). The kernel could spread connections over sockets that share the port, but it does
so by a hash: voice calls are few, long and heavy, and of twenty calls it would often put fourteen
on one worker. A hash also goes on choosing a worker that hangs. What the hub does costs some
microseconds a connection and nothing a byte; it reads nothing, so TLS and all else is the worker's.
The UDP sockets of a call are opened by the worker that answers the offer, and stay its own.

**What is central.** Slots are the engine's: whoever asks it for one too many is refused. Places
(`max_connections`, `max_connections_per_client`) and client secrets are kept at the hub's desk
(`hub`, asked through `siblings`). Nobody keeps a directory of sessions or calls: a resume token
and the id of a call begin with the name of the process that made them, its home.

**What is routed.** A `session.resume` that comes to another worker than the session's is relayed:
that worker stays the client's, terminates its TLS, and passes messages on over a socket between the
two (`inner`, `relay`). The connection itself can't move once TLS or a WebSocket has begun on it. A
hangup goes the same way. Chat and robots, which are no media, are relayed to the hub, where there
is one chat model and one policy. `GET /metrics` at any worker answers for all: each series of a
worker has a label `worker`, because a worker that is started again counts from 0 again.

**When a worker dies** the kernel closes its sockets, so its callers know at once; the engine ends
the leases that came over its rings, the hub gives its places back and starts another under a new
name. A resume token of the dead is answered with `session_resume_expired`. When the hub dies, so do
all others. A SIGTERM to the hub drains: it tells the workers, and goes when the last has gone.
"""
