"""Raw PCM, `/v1/audio/duplex`: float32 both ways in binary frames, a little JSON in text frames.

No I/O. A client sends `open`, waits for `ready` or doesn't, sends mono float32 little-endian
samples of any number, then `close`; `done` comes after the last frame.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from duplex.commands import AppendAudio, CloseSession, Command, UpdateSession
from duplex.errors import SessionError
from duplex.events import (
    Event,
    Failed,
    OutputAudio,
    OutputText,
    SessionClosed,
    SessionExpired,
    SessionUpdated,
)
from duplex.wire.bounds import check_items
from duplex.wire.fields import (
    SAMPLING,
    Field,
    Reader,
    input_rate,
    persona,
    ref_audio,
    refuse,
    voice,
)
from duplex.wire.frames import Binary
from engine.api import EngineSpec
from media.formats import AudioFormat, encode

_decode = msgspec.json.Decoder(dict[str, object]).decode
_encode = msgspec.json.Encoder().encode

_OPEN: dict[str, Field] = SAMPLING | {
    "persona": persona,
    "voice": voice,
    "ref_audio": ref_audio,
    "sample_rate": input_rate,
}


class RawWire:
    """The protocol of one session."""

    def __init__(self, session_id: str, spec: EngineSpec) -> None:
        self._session_id = session_id
        self._spec = spec
        self._open = False
        self._ready = False
        self._failed = False

    def parse(self, data: bytes, *, binary: bool) -> Command:
        """A client message as a command. Raises SessionError."""
        if binary:
            if not self._open:
                raise SessionError("not_open", 'Audio comes after {"type": "open"}.')
            return AppendAudio(audio=data)
        check_items(data)
        try:
            fields = _decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SessionError(
                "invalid_json", f"A text message is a JSON object: {error}."
            ) from error
        match fields.get("type"):
            case "open":
                return self._opening(fields)
            case "close":
                return CloseSession()
            case kind:
                shown = repr(kind)[:40]
                raise SessionError(
                    "unknown_event", f"Unknown type {shown}: open or close.", param="type"
                )

    def render(self, event: Event) -> list[bytes]:
        """The messages that tell of an event: `Binary` samples, JSON all else."""
        match event:
            case OutputAudio():
                return [Binary(encode(AudioFormat.PCM_F32LE, event.pcm))]
            case OutputText():
                return [_encode({"type": "text", "text": event.text})]
            case SessionUpdated():
                self._ready = True
                return [_encode(self._readiness(event))]
            case Failed():
                self._failed |= event.error.fatal
                self._open = self._ready
                return [_encode(_error(event.error))]
            case SessionExpired():
                self._failed = True
                said = f"Nothing came for {event.idle_timeout_s:g} s."
                return [_encode(_error(SessionError("session_expired", said)))]
            case SessionClosed() if not self._failed:
                return [_encode({"type": "done"})]
        return []

    def _opening(self, fields: Mapping[str, object]) -> UpdateSession:
        if self._open:
            raise SessionError("already_open", "The session is open.", param="type")
        reader = Reader(self._spec)
        reader.patch |= {
            "input_format": AudioFormat.PCM_F32LE,
            "output_format": AudioFormat.PCM_F32LE,
            "input_rate": self._spec.sample_rate,
        }
        for name, value in fields.items():
            field = _OPEN.get(name)
            if field is not None:
                field(reader, name, value)
            elif name != "type":
                refuse(name, f"Unknown setting {name!r}.", "unknown_parameter")
        patch, substitutions = reader.result()
        self._open = True
        return UpdateSession(patch=patch, substitutions=substitutions)

    def _readiness(self, event: SessionUpdated) -> dict[str, object]:
        """`ready`, with what the frames that follow are, and what isn't as it was asked for."""
        ready: dict[str, object] = {
            "type": "ready",
            "session_id": self._session_id,
            "sample_rate": self._spec.sample_rate,
            "frame_size": self._spec.frame_size,
        }
        return ready | ({"substitutions": event.substitutions} if event.substitutions else {})


def _error(error: SessionError) -> dict[str, object]:
    fields: dict[str, object] = {"type": "error", "code": error.code, "message": error.message}
    return fields | ({"param": error.param} if error.param is not None else {})
