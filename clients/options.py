"""What a client asks of a session, and how that is said on the wire. No I/O."""

from __future__ import annotations

import binascii
import ipaddress
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from clients.errors import Unreachable
from media.formats import AudioFormat, Pcm, encode

MODEL_RATE = 24000
"""Samples a second of a session's audio, unless its format is a telephone's."""

G711_RATE = 8000

_PATH = "/v1/realtime"


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks of its session. None leaves the server's choice."""

    url: str = "ws://127.0.0.1:8091"
    """The server, with or without a path and a query of its own."""
    api_key: str | None = None
    model: str | None = None
    persona: str | None = None
    voice: str | None = None
    seed: int | None = None
    greedy: bool = False
    """The likeliest token always, instead of sampling."""
    input_format: AudioFormat = AudioFormat.PCM_F32LE
    output_format: AudioFormat = AudioFormat.PCM_F32LE
    input_rate: int | None = None
    """Samples a second of what is sent. None is the format's own: 8000 for G.711, else 24000."""
    dialect: str = "ga"
    """Names of the server's events: "ga" or "beta"."""
    open_timeout_s: float = 30.0
    """For the connection and the opening of the session, each."""


def append_message(format: AudioFormat, pcm: Pcm) -> bytes:
    """The event that sends samples [n], as JSON."""
    audio = binascii.b2a_base64(encode(format, pcm), newline=False)
    return b'{"type":"input_audio_buffer.append","audio":"' + audio + b'"}'


def output_rate(format: AudioFormat) -> int:
    """Samples a second of a format as sessions speak it."""
    g711 = format in (AudioFormat.G711_ULAW, AudioFormat.G711_ALAW)
    return G711_RATE if g711 else MODEL_RATE


def input_rate(options: SessionOptions) -> int:
    """Samples a second of what a session sends."""
    return options.input_rate or output_rate(options.input_format)


def realtime_url(options: SessionOptions) -> str:
    """The address of the session's socket. Raises Unreachable for one that is none."""
    url = options.url if "://" in options.url else f"ws://{options.url}"
    scheme, host, path, query, _ = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    if scheme not in ("ws", "wss") or not host:
        raise Unreachable(f"{options.url!r} is no address of a server, such as ws://host:8091")
    # This client doesn't come back after a break, so the server need not wait for it.
    fields = {"duplex": "1", "autostart": "0", "resume": "0", "dialect": options.dialect}
    if options.model is not None:
        fields["model"] = options.model
    fields.update(parse_qsl(query, keep_blank_values=True))
    return urlunsplit((scheme, host, path.rstrip("/") or _PATH, urlencode(fields), ""))


def session_update(options: SessionOptions) -> bytes:
    """The event that opens the session, with flat keys."""
    extra: dict[str, object] = {}
    if options.seed is not None:
        extra["seed"] = options.seed
    if options.greedy:
        extra |= {"audio_temperature": 0.0, "text_temperature": 0.0}
    session: dict[str, object] = {
        "input_audio_format": options.input_format.value,
        "output_audio_format": options.output_format.value,
        "sample_rate_hz": input_rate(options),
    }
    if options.persona is not None:
        session["instructions"] = options.persona
    if options.voice is not None:
        session["voice"] = options.voice
    if extra:
        session["extra_body"] = extra
    return msgspec.json.encode({"type": "session.update", "session": session})


def is_loopback(url: str) -> bool:
    """Whether an address is one of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
