"""Resume: sessions that lost their socket are held for a while, for a new one to take over.

Every socket of a session gets a token of its own, good for one resume; only its hash is kept. The
token that brought a socket its session is good again until something comes from the client there:
the socket may be lost before the client has the next one. While a session is held its events go on
to its journal. A held session gives its slot up when a caller would otherwise be refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from duplex.errors import SessionError
from duplex.events import Event
from duplex.journal import Journal, JournalGap
from duplex.session import Session
from duplex.wire.realtime import RealtimeWire
from media.clock import Clock

_REMEMBERED = 4096
"""Ids of sessions that are over, to tell a late resume from a wrong one."""

_UNDER_WAY_BYTES = 512 << 10
"""More than the buffers between a server and its client hold. While a socket is whole, older
messages have arrived, and to keep them would only cost memory and the caches.
"""


class ResyncRequired(Exception):
    """The journal has lost messages that the client is missing: the session can't go on."""


class Attachment:
    """A session, its wire and journal, and the socket that has it now."""

    def __init__(
        self, session: Session, wire: RealtimeWire, journal_bytes: int, token_prefix: str = ""
    ) -> None:
        self.session = session
        self.wire = wire
        self.journal = Journal(journal_bytes)
        self._journal_bytes = journal_bytes
        self.generation = 0
        """How many sockets the session has had."""
        self.evict: Callable[[], Awaitable[None]] | None = None
        """Makes the socket that has the session let go of it; None while there is none."""
        self.held_since = 0.0
        """When its socket was lost, if it was."""
        self._token_prefix = token_prefix
        self._token_hash = b""
        self._redeemed_hash = b""
        """Of the token that a socket has come with, until it takes the session."""
        self._unconfirmed_hash = b""
        """Of the one it came with, until its client has shown to have the next."""

    def take(self, evict: Callable[[], Awaitable[None]]) -> str:
        """A socket takes the session; returns the token for the next one."""
        self.evict = evict
        self.generation += 1
        self._restore()
        if not self._unconfirmed_hash:
            self.journal.wanted_bytes = _UNDER_WAY_BYTES
        token = self._token_prefix + secrets.token_urlsafe(32)
        self._token_hash = _hash(token)
        return token

    def let_go(self) -> None:
        """The socket is gone: what comes now is all kept for the next one."""
        self.evict = None
        self._restore()
        self.journal.wanted_bytes = self._journal_bytes

    def knows(self, token: str) -> bool:
        """Whether this is the last token given, or one that is good again."""
        shown = _hash(token)
        good = (self._token_hash, self._unconfirmed_hash)
        return any(hmac.compare_digest(one, shown) for one in good)

    def redeem(self, token: str) -> None:
        """Spends a token that is known: none is, until the session is taken, or let go of."""
        self._token_hash = self._unconfirmed_hash = b""
        self._redeemed_hash = _hash(token)

    def confirm(self) -> None:
        """Something came from the client: the token that it came with is spent. Idempotent."""
        if self._unconfirmed_hash:
            self._unconfirmed_hash = b""
            self.journal.wanted_bytes = _UNDER_WAY_BYTES

    def _restore(self) -> None:
        if self._redeemed_hash:
            self._unconfirmed_hash, self._redeemed_hash = self._redeemed_hash, b""

    def render(self, event: Event) -> Sequence[bytes]:
        """The messages that tell of an event, which are in the journal then."""
        messages = self.wire.render(event)
        seq = self.wire.server_event_seq - len(messages)
        for message in messages:
            seq += 1
            self.journal.add(seq, message)
        return messages


class Resumption:
    """The sessions of a server that can be resumed. `grace_s` 0 turns resume off."""

    def __init__(
        self,
        clock: Clock,
        *,
        grace_s: float,
        journal_bytes: int = 4 << 20,
        on_hold: Callable[[], None] = lambda: None,
        token_prefix: str = "",
    ) -> None:
        """`on_hold` is called when a session loses its socket, and so could yield its slot.

        `token_prefix` is what all tokens begin with: where sessions of several processes may be
        resumed, it says which of them to ask.
        """
        self.grace_s = grace_s
        self._on_hold = on_hold
        self._token_prefix = token_prefix
        self._clock = clock
        self._journal_bytes = journal_bytes
        self._attachments: dict[str, Attachment] = {}
        self._held: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """What must end whoever leaves meanwhile: sessions that yield, or change sockets."""
        self._over: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def enabled(self) -> bool:
        """Whether sessions are held at all."""
        return self.grace_s > 0

    @property
    def held(self) -> int:
        """Sessions without a socket."""
        return len(self._held)

    @property
    def held_since(self) -> float | None:
        """When the socket was lost of the session that would yield its slot first; None: none
        would.
        """
        held = (self._attachments[session_id] for session_id in self._held)
        return next((a.held_since for a in held if a.session.opened), None)

    def attach(self, session: Session, wire: RealtimeWire) -> Attachment:
        """A new session; its socket takes it next."""
        attachment = Attachment(session, wire, self._journal_bytes, self._token_prefix)
        self._attachments[session.id] = attachment
        return attachment

    def detach(self, attachment: Attachment) -> None:
        """The session is over. Idempotent."""
        session_id = attachment.session.id
        if self._attachments.pop(session_id, None) is not None:
            self._over.append(session_id)

    def hold(self, attachment: Attachment) -> None:
        """The socket was lost: keeps the session for the grace time."""
        attachment.let_go()
        attachment.held_since = self._clock.now()
        session_id = attachment.session.id
        self._held[session_id] = asyncio.create_task(
            self._keep(attachment), name=f"hold-{session_id}"
        )
        self._on_hold()

    async def resume(
        self, session_id: str, token: str, last_seq: int
    ) -> tuple[Attachment, list[bytes]]:
        """Gives the session to a new socket, which must `take` it, with the messages it missed.

        Raises SessionError, which leaves the session and the token as they are, or ResyncRequired;
        the session has ended then.
        """
        attachment = self._find(session_id, token)
        if last_seq > (newest := attachment.wire.server_event_seq):
            raise not_sent(last_seq, newest)
        attachment.redeem(token)
        freeing = self._spawn(self._free(attachment), f"free-{session_id}")
        try:
            await asyncio.shield(freeing)
        except asyncio.CancelledError:  # who came for the session has left again
            freeing.add_done_callback(lambda _: self.hold(attachment))
            raise
        try:
            return attachment, attachment.journal.after(last_seq)
        except JournalGap as gap:
            self.detach(attachment)
            await attachment.session.close("resync_required")
            raise ResyncRequired(str(gap)) from gap

    async def yield_slot(self) -> bool:
        """Ends the session that has been held for longest; False if none is held.

        It ends even if the newcomer who needs its slot leaves meanwhile; another may wait for
        the slot then.
        """
        for session_id, keeping in self._held.items():
            attachment = self._attachments[session_id]
            if attachment.session.opened:
                del self._held[session_id]
                ending = self._end(attachment, keeping)
                await asyncio.shield(self._spawn(ending, f"yield-{session_id}"))
                return True
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return True
        return False

    async def close(self) -> None:
        """Ends all held sessions."""
        while await self.yield_slot():
            pass

    def _find(self, session_id: str, token: str) -> Attachment:
        if not self.enabled:
            raise SessionError("unsupported_session_resume", "Resume is off on this server.")
        attachment = self._attachments.get(session_id)
        if attachment is None:
            if session_id in self._over:
                raise SessionError(
                    "session_resume_expired", "The session is over.", param="session_id"
                )
            raise no_session()
        if not attachment.knows(token):
            raise wrong_token()
        return attachment

    async def _free(self, attachment: Attachment) -> None:
        """Takes a session from its socket, or from its keeping."""
        if attachment.evict is not None:
            await attachment.evict()
        keeping = self._held.pop(attachment.session.id, None)
        if keeping is not None:
            await _cancel(keeping)

    async def _end(self, attachment: Attachment, keeping: asyncio.Task[None]) -> None:
        """Ends a session that was held until now."""
        await _cancel(keeping)
        await attachment.session.close("yielded")
        self.detach(attachment)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Runs work that must end even if the task that asked for it is cancelled."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(self, attachment: Attachment) -> None:
        """Reads the session's events in the socket's place until the grace time is over."""
        session = attachment.session
        reader = asyncio.create_task(self._journal(attachment))
        expiry = asyncio.create_task(self._clock.sleep_until(self._clock.now() + self.grace_s))
        try:
            await asyncio.wait({reader, expiry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            expiry.cancel()
            await asyncio.gather(reader, expiry, return_exceptions=True)
        self._held.pop(session.id, None)
        await session.close("resume_expired")
        self.detach(attachment)

    async def _journal(self, attachment: Attachment) -> None:
        while (event := await attachment.session.outbox.get()) is not None:
            attachment.render(event)


def no_session() -> SessionError:
    """There is no such session, and never was as far as is known."""
    return SessionError("invalid_session_resume", "There is no such session.", param="session_id")


def wrong_token() -> SessionError:
    """There is such a session, but not for this token."""
    return SessionError(
        "invalid_resume_token",
        "The token isn't the one given last, or it was used.",
        param="resume_token",
    )


def not_sent(seq: int, newest: int) -> SessionError:
    """The client says that it has a message which doesn't exist yet."""
    return SessionError(
        "invalid_session_resume",
        f"No message of this session has the number {seq}: the newest is {newest}.",
        param="last_received_server_event_seq",
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
