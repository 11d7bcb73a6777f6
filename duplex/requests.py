"""What a client can ask of its session, besides to hear its audio."""

from __future__ import annotations

import asyncio
import binascii
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

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
    SessionUpdated,
    TurnSignalled,
)
from duplex.settings import EncodedAudio
from media.clips import read_clip
from media.formats import BadAudio

if TYPE_CHECKING:
    from duplex.session import Session
    from duplex.settings import Settings, SettingsPatch

_MAX_REFERENCE_S = 30.0

_FIXED_BY_FIRST_FRAME = (
    "voice",
    "persona",
    "voice_audio",
    "seed",
    "text_temperature",
    "text_top_k",
    "audio_temperature",
    "audio_top_k",
    "input_clock",
)


async def carry_out(session: Session, command: Command) -> None:
    """Does what a command asks. Raises SessionError; nothing has changed then."""
    match command:
        case AckEvent():
            pass
        case UpdateSession():
            await _update(session, command)
        case CommitInput():
            session.user.commit(may_be_empty=command.may_be_empty)
        case ClearInput():
            session.input.clear()
            session.user.clear()
        case CreateResponse():
            if session.responses.current is not None:
                raise SessionError(
                    "conversation_already_has_active_response",
                    f"Response {session.responses.current.id} is in progress.",
                )
            session.responses.request()
        case BargeIn():
            _barge_in(session, command)
        case ClearOutput():
            response = session.fence.response
            session.interrupt("client_cancelled")
            if response is not None:
                session.emit(OutputCleared(response_id=response))
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


async def _update(session: Session, command: UpdateSession) -> None:
    """Applies the patch whole or not at all; the first update takes the slot."""
    patch = await _decoded(command.patch, session.runtime.spec.sample_rate)
    settings = session.settings.patched(patch)
    if session.fed and (name := _changed(session.settings, settings, patch)):
        raise SessionError(
            "invalid_value", f"{name} is fixed once audio has been sent.", param=name
        )
    if not session.opened or settings.open_params() != session.settings.open_params():
        await _open(session, settings, command.patch)
    session.apply(settings)
    for substitution in command.substitutions:
        session.substitutions[substitution.field] = substitution
    session.start()
    session.emit(
        SessionUpdated(settings=settings, substitutions=tuple(session.substitutions.values()))
    )


async def _open(session: Session, settings: Settings, asked: SettingsPatch) -> None:
    try:
        await session.open(settings)
    except SessionError as error:
        if error.param == "voice_audio" and isinstance(asked.voice_audio, EncodedAudio):
            error.param = asked.voice_audio.param
        raise


async def _decoded(patch: SettingsPatch, rate: int) -> SettingsPatch:
    """The patch with its recording, if it has one, as samples."""
    recording = patch.voice_audio
    if not isinstance(recording, EncodedAudio):
        return patch
    try:
        samples = await asyncio.to_thread(_samples, recording.base64, rate)
    except BadAudio as error:
        message = f"{recording.param}: {error}."
        raise SessionError("bad_audio", message, param=recording.param) from error
    return msgspec.structs.replace(patch, voice_audio=samples)


def _samples(base64: str, rate: int) -> bytes:
    """A file in base64 as float32 mono samples."""
    try:
        file = binascii.a2b_base64(base64, strict_mode=True)
    except ValueError as error:
        raise BadAudio(f"no base64 ({error})") from error
    return read_clip(file, rate, max_s=_MAX_REFERENCE_S).astype("<f4", copy=False).tobytes()


def _changed(old: Settings, new: Settings, patch: SettingsPatch) -> str | None:
    for name in _FIXED_BY_FIRST_FRAME:
        if getattr(patch, name) is not UNSET and getattr(new, name) != getattr(old, name):
            return name
    return None


def _barge_in(session: Session, command: BargeIn) -> None:
    response = session.fence.response
    if response is None or command.response_id not in (None, response):
        if command.required:
            raise SessionError(
                "response_cancel_not_active",
                "There is no such response in progress.",
                param="response_id" if command.response_id else None,
            )
        return
    session.interrupt("client_cancelled")
    session.emit(
        OverlapDecided(
            policy=session.settings.overlap_policy, action="barge_in", reason="client_request"
        )
    )


def _ack_playback(session: Session, command: AckPlayback) -> None:
    playback = session.ledger.ack(
        response_id=command.response_id,
        item_id=command.item_id,
        current=session.fence.response,
        turn=session.fence.turn,
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
