"""Client messages of the realtime protocol, as commands."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

from duplex import commands
from duplex.errors import SessionError
from duplex.wire import messages
from duplex.wire.bounds import check_items
from duplex.wire.items import read_item
from duplex.wire.messages import MAX_EVENT_ID
from duplex.wire.response_reader import read_response
from duplex.wire.session_reader import read_update
from duplex.wire.video_frames import read_video
from engine.api import EngineSpec
from media.formats import AudioFormat, UnsupportedFormat, parse_format


class Parser:
    """Parses for a model that `spec` describes. `lenient_commit`: an empty commit is no error."""

    def __init__(self, spec: EngineSpec, *, lenient_commit: bool) -> None:
        self._spec = spec
        self._lenient_commit = lenient_commit

    def parse(self, data: bytes | str) -> commands.Command:
        """A client message as a command. Raises SessionError, with the client's event id."""
        check_items(data)
        try:
            message = messages.decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise _refusal(data, str(error)) from error
        try:
            return self._command(message)
        except SessionError as error:
            error.event_id = message.event_id
            raise

    def _command(self, message: messages.ClientMessages) -> commands.Command:
        event_id = message.event_id
        match message:
            case messages.InputAudioAppend():
                return self._append(message)
            case messages.SessionEventAck():
                return commands.AckEvent(
                    event_id=event_id, server_event_seq=message.server_event_seq
                )
            case messages.SessionUpdate() | messages.SessionCreate():
                return read_update(message.session, self._spec, event_id)
            case messages.InputAudioCommit():
                return commands.CommitInput(event_id=event_id, may_be_empty=self._lenient_commit)
            case messages.InputAudioClear() | messages.InputCancel():
                return commands.ClearInput(event_id=event_id)
            case messages.InputTextAppend():
                return commands.AppendText(event_id=event_id, text=message.text)
            case messages.ResponseCreate():
                return read_response(message.response, self._spec, event_id)
            case messages.ResponseCancel():
                return commands.BargeIn(
                    event_id=event_id, response_id=message.response_id, required=True
                )
            case messages.OutputAudioClear():
                return commands.ClearOutput(event_id=event_id, required=True)
            case messages.BargeInMessage():
                return commands.BargeIn(event_id=event_id, response_id=message.response_id)
            case messages.ConversationItemCreate():
                return commands.CreateItem(
                    event_id=event_id,
                    item=read_item(message.item),
                    after=message.previous_item_id,
                )
            case messages.ConversationItemDelete():
                return commands.DeleteItem(event_id=event_id, item_id=message.item_id)
            case messages.ConversationItemRetrieve():
                return commands.RetrieveItem(event_id=event_id, item_id=message.item_id)
            case messages.ConversationItemTruncate():
                return commands.TruncateItem(
                    event_id=event_id,
                    item_id=message.item_id,
                    content_index=message.content_index,
                    audio_end_ms=message.audio_end_ms,
                )
            case messages.PlaybackAck():
                return commands.AckPlayback(
                    event_id=event_id,
                    response_id=message.response_id,
                    item_id=message.item_id,
                    played_ms=message.played_ms,
                    committed_ms=message.committed_ms,
                    truncate=message.truncate,
                )
            case messages.TurnSignal():
                return commands.SignalTurn(event_id=event_id, event=message.event)
            case messages.SessionResume():
                return commands.ResumeSession(
                    event_id=event_id,
                    session_id=message.session_id,
                    resume_token=message.resume_token,
                    last_received_server_event_seq=message.last_received_server_event_seq,
                )
            case messages.SessionHeartbeat():
                return commands.Heartbeat(event_id=event_id)
            case messages.SessionClose():
                return commands.CloseSession(event_id=event_id)

    def _append(self, message: messages.InputAudioAppend) -> commands.AppendAudio:
        name, audio_format = message.format or message.input_audio_format, None
        if name is not None:
            param = "format" if message.format else "input_audio_format"
            audio_format = _input_format(name, param)
        video = read_video(message.video_frames or [], self._spec)
        return commands.AppendAudio(
            event_id=message.event_id,
            audio=message.audio,
            format=audio_format,
            rate=message.sample_rate_hz,
            video=video,
        )


def _input_format(name: str, param: str) -> AudioFormat:
    try:
        audio_format = parse_format(name)
    except UnsupportedFormat as error:
        raise SessionError("unsupported_audio_format", str(error), param=param) from error
    if audio_format is AudioFormat.WAV:
        raise SessionError("unsupported_audio_format", "Input audio can't be wav.", param=param)
    return audio_format


class _Head(msgspec.Struct):
    """What can be read of a message that is none of the client's."""

    type: object = None
    event_id: object = None


def _refusal(data: bytes | str, problem: str) -> SessionError:
    """The error for what is no client message: what is wrong, where, and whose event."""
    head = _Head()
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        with suppress(msgspec.ValidationError):  # JSON, but no object
            head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return SessionError("invalid_json", f"The message is not JSON: {error}.")
    kind, named = head.type, head.event_id
    event_id = named if isinstance(named, str) and len(named) <= MAX_EVENT_ID else None
    what, _, where = problem.partition(" - at `$.")
    param = where.removesuffix("`") or None
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
    if param == "type" and isinstance(kind, str):
        return SessionError(
            "unknown_event", f"Unknown event {kind[:100]!r}.", param="type", event_id=event_id
        )
    code = "bad_audio" if param == "audio" and not missing else "invalid_value"
    return SessionError(code, f"{what}.", param=param, event_id=event_id)
