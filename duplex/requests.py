"""What a client can ask of its session, besides to hear its audio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from duplex.commands import (
    AckEvent,
    AckPlayback,
    AppendText,
    BargeIn,
    ClearInput,
    ClearOutput,
    CloseSession,
    Command,
    CommitInput,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Heartbeat,
    ResumeSession,
    RetrieveItem,
    SignalTurn,
    TruncateItem,
    UpdateSession,
)
from duplex.errors import SessionError
from duplex.events import (
    HeartbeatAcknowledged,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
    OverlapDecided,
    PlaybackAcknowledged,
    TurnSignalled,
)
from duplex.updates import update

if TYPE_CHECKING:
    from duplex.session import Session


async def carry_out(session: Session, command: Command) -> None:
    """Does what a command asks. Raises SessionError; nothing has changed then."""
    match command:
        case AckEvent():
            pass
        case UpdateSession():
            await update(session, command)
        case CommitInput():
            session.user.commit(may_be_empty=command.may_be_empty)
        case ClearInput():
            session.intake.clear()
            session.user.clear()
        case CreateResponse():
            await _create_response(session, command)
        case BargeIn():
            _barge_in(session, command)
        case ClearOutput():
            _clear_output(session, command)
        case CreateItem():
            item = command.item
            previous = session.conversation.add(item, command.after)
            session.emit(ItemAdded(item=item.snapshot(), previous_item_id=previous))
            session.emit(ItemDone(item=item.snapshot(), previous_item_id=previous))
        case DeleteItem():
            session.conversation.delete(command.item_id)
            session.emit(ItemDeleted(item_id=command.item_id))
        case RetrieveItem():
            item = session.conversation.get(command.item_id)
            session.emit(ItemRetrieved(item=item.snapshot()))
        case TruncateItem():
            end = session.conversation.truncate(
                command.item_id, command.content_index, command.audio_end_ms
            )
            session.emit(
                ItemTruncated(
                    item_id=command.item_id,
                    content_index=command.content_index,
                    audio_end_ms=end,
                )
            )
        case AckPlayback():
            _ack_playback(session, command)
        case SignalTurn():
            session.emit(TurnSignalled(event=command.event))
        case AppendText():
            raise SessionError("unsupported_modality", "The model takes no text.", param="text")
        case Heartbeat():
            session.emit(HeartbeatAcknowledged())
        case ResumeSession():
            raise SessionError(
                "unsupported_session_resume", "This session's connection can't be changed."
            )
        case CloseSession():
            await session.close("client_close")
        case _:
            raise SessionError(
                "unsupported_event", f"This session takes no {type(command).__name__}."
            )


async def _create_response(session: Session, command: CreateResponse) -> None:
    """Waits for the agent to speak, in a slot that is taken now if there was none."""
    current = session.responses.current
    if current is not None:
        raise SessionError(
            "conversation_already_has_active_response", f"Response {current.id} is in progress."
        )
    await session.ensure_open()
    session.intake.keep_time()
    if not session.responses.request(command):
        _decide(session, "listen", "model_decides")


def _clear_output(session: Session, command: ClearOutput) -> None:
    """Drops what is queued; of a response that is over, the transport may still have some."""
    response = session.ledger.last
    if response is None:
        if command.required:
            raise SessionError("response_cancel_not_active", "There was no response yet.")
        return
    if session.fence.response is None:
        session.take_back()
    else:
        session.interrupt("client_cancelled")
    session.emit(OutputCleared(response_id=response))


def _barge_in(session: Session, command: BargeIn) -> None:
    response = session.fence.response
    if response is None or command.response_id not in (None, response):
        if command.required:
            raise SessionError(
                "response_cancel_not_active",
                "There is no such response in progress.",
                param="response_id" if command.response_id else None,
            )
        _decide(session, "drop", "no_such_response")
        return
    session.interrupt("client_cancelled")
    _decide(session, "barge_in", "client_request")


def _decide(session: Session, action: Literal["listen", "barge_in", "drop"], reason: str) -> None:
    """Tells what was done about a request to interrupt, or to speak."""
    policy = session.settings.overlap_policy
    session.emit(OverlapDecided(policy=policy, action=action, reason=reason))


def _ack_playback(session: Session, command: AckPlayback) -> None:
    playback = session.ledger.ack(
        response_id=command.response_id,
        item_id=command.item_id,
        current=session.fence.response,
        played_ms=command.played_ms,
        committed_ms=command.committed_ms,
        truncate=command.truncate,
    )
    session.emit(
        PlaybackAcknowledged(
            response_id=playback.response_id,
            item_id=playback.item_id,
            played_ms=playback.played_ms,
            committed_ms=playback.committed_ms,
        )
    )
