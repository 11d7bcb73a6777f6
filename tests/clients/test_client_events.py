import base64
import json

import numpy as np
import pytest

from clients.errors import BadEvent
from clients.events import (
    AudioFrame,
    EventReader,
    Other,
    ResponseCreated,
    ResponseDone,
    ServerError,
    SessionClosed,
    SessionCreated,
    SessionUpdated,
    Text,
)
from media.formats import AudioFormat, encode


def read(reader: EventReader | None = None, at: float = 1.0, **fields):
    reader = reader or EventReader(AudioFormat.PCM_F32LE, 24000)
    return reader.read(json.dumps(fields).encode(), at)


def delta(pcm: np.ndarray, format: AudioFormat) -> str:
    return base64.b64encode(encode(format, pcm)).decode()


PCM = np.linspace(-0.5, 0.5, 100, dtype=np.float32)


@pytest.mark.parametrize("kind", ["response.output_audio.delta", "response.audio.delta"])
@pytest.mark.parametrize("format", [AudioFormat.PCM_F32LE, AudioFormat.PCM16])
def test_audio_of_both_dialects(kind, format):
    event = read(
        at=5.5,
        type=kind,
        response_id="r1",
        item_id="item_r1",
        delta=delta(PCM, format),
        format=format.value,
        sample_rate_hz=24000,
        metadata={"frame_index": 7, "epoch": 0, "audio_duration_ms": 80.0},
    )
    assert isinstance(event, AudioFrame)
    assert (event.index, event.response_id, event.sample_rate) == (7, "r1", 24000)
    assert event.received_at == 5.5
    assert np.max(np.abs(event.pcm - PCM)) <= (0 if format is AudioFormat.PCM_F32LE else 1 / 65536)


def test_audio_that_says_nothing_of_itself_is_what_was_asked_for():
    reader = EventReader(AudioFormat.G711_ULAW, 8000)
    for index in range(3):
        event = read(
            reader,
            type="response.output_audio.delta",
            response_id="r",
            delta=delta(PCM, AudioFormat.G711_ULAW),
        )
        assert isinstance(event, AudioFrame)
        assert (event.index, event.sample_rate, len(event.pcm)) == (index, 8000, 100)


@pytest.mark.parametrize(
    "kind",
    [
        "response.output_audio_transcript.delta",
        "response.audio_transcript.delta",
        "response.output_text.delta",
        "response.text.delta",
    ],
)
def test_text(kind):
    assert read(type=kind, delta=" hé", response_id="r") == Text(" hé", "r")


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        (
            {"type": "session.created", "session_id": "s", "session": {"a": [1]}},
            SessionCreated("s", {"a": [1]}),
        ),
        ({"type": "session.updated", "session_id": "s"}, SessionUpdated("s", {})),
        (
            {"type": "session.closed", "session_id": "s", "reason": "client_close"},
            SessionClosed("s", "client_close"),
        ),
        ({"type": "response.created", "response": {"id": "r"}}, ResponseCreated("r")),
        (
            {"type": "response.done", "response": {"id": "r", "status": "completed"}},
            ResponseDone("r", "completed"),
        ),
        (
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "code": "bad_audio",
                    "message": "odd",
                    "param": "audio",
                    "event_id": "e1",
                },
            },
            ServerError("bad_audio", "odd", "invalid_request_error", "audio", "e1"),
        ),
        (
            {"type": "error", "error": {"message": "m", "code": None}},
            ServerError("unknown", "m"),
        ),
        (
            {"type": "overlap.decision", "action": "listen", "server_event_seq": 3},
            Other(
                "overlap.decision",
                {"type": "overlap.decision", "action": "listen", "server_event_seq": 3},
            ),
        ),
    ],
)
def test_events(fields, event):
    assert read(**fields) == event


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"type": 3}',
        b'{"type": "response.audio.delta", "delta": "AAA"}',
        b'{"type": "response.audio.delta", "delta": "AAAA", "format": "mp3"}',
        b'{"type": "response.audio.delta", "delta": "AAAA", "format": "pcm16"}',
        b'{"type": "session.created", "session": 4}',
        b"\xff",
    ],
)
def test_what_is_no_event_says_so(message):
    with pytest.raises(BadEvent, match="no event"):
        EventReader(AudioFormat.PCM16, 24000).read(message, 0.0)
