"""Moshi's `/api/chat`: binary messages whose first byte is their kind. No I/O.

Audio is Ogg-Opus, mono, 24 kHz, both ways. Sources: `moshi.server` and `moshi.client` of the PyPI
package `moshi` 0.2 for kinds 0 to 2, the protocol of its web client for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from duplex.commands import (
    AppendAudio,
    AppendText,
    ClearOutput,
    Command,
    CommitInput,
    Heartbeat,
    UpdateSession,
)
from duplex.errors import SessionError
from duplex.events import Event, Failed, OutputAudio, OutputText, SessionClosed, SessionUpdated
from duplex.wire.fields import SAMPLING, Field, Reader, persona, refuse, voice
from duplex.wire.frames import Binary
from engine.api import EngineSpec
from media.formats import AudioFormat, BadAudio
from media.ogg_opus import RATE, OggOpusDecoder, OggOpusEncoder


class Kind(IntEnum):
    """The first byte of a message."""

    HANDSHAKE = 0
    AUDIO = 1
    TEXT = 2
    CONTROL = 3
    METADATA = 4
    ERROR = 5
    PING = 6


class Control(IntEnum):
    """The second byte of a control message."""

    START = 0
    END_TURN = 1
    PAUSE = 2
    RESTART = 3


def message(kind: Kind, payload: bytes = b"") -> Binary:
    """A message of this kind."""
    return Binary(bytes((kind,)) + payload)


PING: Final = message(Kind.PING)
"""Says nothing, so that a client that leaves after 10 s of silence doesn't."""


def read_query(query: Mapping[str, str], spec: EngineSpec) -> UpdateSession:
    """What a client asks for in its URL. Names that aren't known are ignored, and empty values.

    Raises SessionError naming the parameter. Voices are names of the registry: the `.pt` of
    PersonaPlex's clients is taken off, a path is an unknown voice.
    """
    reader = Reader(spec)
    for name, (convert, field) in _QUERY.items():
        if text := query.get(name):
            field(reader, name, convert(name, text))
    patch, substitutions = reader.result()
    return UpdateSession(patch=patch, substitutions=substitutions)


class ChatWire:
    """The protocol of one session, whose audio counts from the handshake on."""

    def __init__(self, spec: EngineSpec) -> None:
        self.early_samples = 0
        """Samples at 24 kHz that came before the handshake, and were dropped."""
        self.ready = False
        """Whether the handshake is over."""
        self._decoder = OggOpusDecoder()
        self._encoder = OggOpusEncoder(spec.sample_rate)

    def parse(self, data: bytes, *, binary: bool) -> Command | None:
        """A client message as a command, if it asks for anything. Raises SessionError."""
        if not binary:
            raise SessionError("invalid_message", "Messages here are binary, not text.")
        if not data:
            raise SessionError("invalid_message", "A message has at least its kind.")
        kind, payload = data[0], data[1:]
        if kind == Kind.AUDIO:
            return self._audio(payload)
        if not self.ready:
            return None
        match kind:
            case Kind.TEXT:
                return AppendText(text=_utf8(payload))
            case Kind.CONTROL:
                return _control(payload)
            case Kind.METADATA:
                _check_json(payload)
                return None
            case Kind.PING:
                return Heartbeat()
        return None

    def render(self, event: Event) -> list[Binary]:
        """The messages that tell of an event. Audio takes about a millisecond of CPU a frame."""
        match event:
            case OutputAudio():
                return _audio(self._encoder.push(event.pcm))
            case OutputText():
                return [message(Kind.TEXT, event.text.encode())]
            case SessionUpdated():
                self.ready = True
                return [message(Kind.HANDSHAKE)]
            case Failed():
                return [message(Kind.ERROR, event.error.message.encode())]
            case SessionClosed():
                return _audio(self._encoder.flush())
        return []

    def _audio(self, pages: bytes) -> AppendAudio | None:
        """Before the handshake a stream has headers and a decoder's state already."""
        try:
            pcm = self._decoder.push(pages)
        except BadAudio as error:
            raise SessionError("bad_audio", f"The audio is {error}.", fatal=True) from error
        if not self.ready:
            self.early_samples += len(pcm)
            return None
        if not len(pcm):
            return None
        return AppendAudio(audio=pcm.tobytes(), format=AudioFormat.PCM_F32LE, rate=RATE)


def _audio(pages: bytes) -> list[Binary]:
    return [message(Kind.AUDIO, pages)] if pages else []


def _control(payload: bytes) -> Command | None:
    if not payload:
        raise SessionError("invalid_message", "A control message says what to do.")
    match payload[0]:
        case Control.END_TURN:
            return CommitInput(may_be_empty=True)
        case Control.RESTART:
            return ClearOutput()
    return None  # start and pause: audio that comes or doesn't says it better


def _utf8(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise SessionError("invalid_message", "A text message is UTF-8.") from error


def _check_json(payload: bytes) -> None:
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SessionError("invalid_json", f"Metadata is JSON: {error}.") from error


def _text(_: str, text: str) -> str:
    return text


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        refuse(name, f"{name} must be a number, not {text[:40]!r}.", "invalid_type")


def _int(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        refuse(name, f"{name} must be an integer, not {text[:40]!r}.", "invalid_type")


def _seed(name: str, text: str) -> int | None:
    """PersonaPlex's clients say -1 for any."""
    number = _int(name, text)
    return None if number == -1 else number


_QUERY: dict[str, tuple[Callable[[str, str], Any], Field]] = {
    "text_prompt": (_text, persona),
    "voice_prompt": (_text, voice),
    "text_temperature": (_float, SAMPLING["text_temperature"]),
    "text_topk": (_int, SAMPLING["text_top_k"]),
    "audio_temperature": (_float, SAMPLING["audio_temperature"]),
    "audio_topk": (_int, SAMPLING["audio_top_k"]),
    "seed": (_seed, SAMPLING["seed"]),
}
