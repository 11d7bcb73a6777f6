"""The realtime wire: client messages in, commands out; events in, server messages out. No I/O."""

from __future__ import annotations

from duplex.commands import Command
from duplex.errors import SessionError
from duplex.events import Event
from duplex.session import Session
from duplex.settings import Capabilities
from duplex.wire.parser import Parser
from duplex.wire.renderer import Renderer
from duplex.wire.session_writer import Dialect
from engine.api import EngineSpec


def dialect_of(query: str | None, beta_header: str | None) -> Dialect:
    """The dialect of server events: `?dialect=`, else the `OpenAI-Beta` header, else GA.

    Raises SessionError for an unknown one.
    """
    match query:
        case "ga":
            return "ga"
        case "beta":
            return "beta"
        case None | "":
            return "beta" if "realtime=v1" in (beta_header or "") else "ga"
    raise SessionError("invalid_value", f"Unknown dialect {query!r}: ga or beta.", param="dialect")


class RealtimeWire:
    """The realtime protocol of one session; it outlives the session's sockets.

    With `capabilities` it speaks full duplex, without them plain Realtime.
    """

    def __init__(
        self,
        session_id: str,
        spec: EngineSpec,
        capabilities: Capabilities | None,
        dialect: Dialect = "ga",
    ) -> None:
        self._parser = Parser(spec, lenient_commit=capabilities is not None)
        self._renderer = Renderer(session_id, spec, capabilities, dialect)

    @property
    def server_event_seq(self) -> int:
        """Number of the last message rendered."""
        return self._renderer.seq

    def parse(self, data: bytes | str, *, binary: bool = False) -> Command:
        """A client message as a command. Raises SessionError, with the client's event id."""
        if binary:
            raise SessionError("invalid_json", "Messages are JSON in text frames, not binary.")
        return self._parser.parse(data)

    def render(self, event: Event) -> list[bytes]:
        """The server messages that tell of an event, as JSON, numbered in this order."""
        return self._renderer.render(event)

    def resumed(self, session: Session) -> bytes:
        """Tells a new socket that the session is its own, and how much of the caller's audio it
        has: what came after that in the older socket, the client repeats.
        """
        found = self._renderer.session_object(
            session.settings, tuple(session.substitutions.values())
        )
        ours = {
            "resume_token": session.resume_token,
            "attachment_generation": session.attachment_generation,
        }
        taken = {"input_samples": session.intake.taken_samples}
        return self._renderer.notice("session.resumed", ours | taken | {"session": found | ours})

    def replaced(self) -> bytes:
        """Tells an older socket that another has the session now."""
        return self._renderer.notice("session.replaced", {"reason": "resumed_elsewhere"})

    def resync_required(self, session_id: str) -> bytes:
        """Tells a new socket that too much is gone: the session has ended."""
        fields = {"session_id": session_id, "reason": "journal_gap"}
        return self._renderer.notice("session.resync_required", fields)
