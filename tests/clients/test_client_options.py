import base64
import json
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from clients.errors import Unreachable
from clients.options import (
    SessionOptions,
    append_message,
    is_loopback,
    realtime_url,
    session_update,
)
from media.formats import AudioFormat


@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("ws://127.0.0.1:8091", "ws://127.0.0.1:8091/v1/realtime?"),
        ("127.0.0.1:8091", "ws://127.0.0.1:8091/v1/realtime?"),
        ("http://host:80/", "ws://host:80/v1/realtime?"),
        ("https://host", "wss://host/v1/realtime?"),
        ("wss://host/v1/duplex", "wss://host/v1/duplex?"),
    ],
)
def test_addresses(url, start):
    got = realtime_url(SessionOptions(url=url))
    assert got.startswith(start)
    assert parse_qs(urlsplit(got).query) == {
        "duplex": ["1"],
        "autostart": ["0"],
        "resume": ["0"],
        "dialect": ["ga"],
    }


def test_the_query_of_the_address_counts_most():
    url = realtime_url(SessionOptions(url="ws://h/?dialect=beta&x=1", model="a b&c"))
    assert parse_qs(urlsplit(url).query) == {
        "duplex": ["1"],
        "autostart": ["0"],
        "resume": ["0"],
        "dialect": ["beta"],
        "model": ["a b&c"],
        "x": ["1"],
    }


@pytest.mark.parametrize("url", ["", "ftp://host", "ws://"])
def test_what_is_no_address_is_an_error(url):
    with pytest.raises(Unreachable, match="no address"):
        realtime_url(SessionOptions(url=url))


def test_an_update_says_only_what_was_asked():
    assert json.loads(session_update(SessionOptions())) == {
        "type": "session.update",
        "session": {
            "input_audio_format": "pcm_f32le",
            "output_audio_format": "pcm_f32le",
            "sample_rate_hz": 24000,
        },
    }
    options = SessionOptions(
        persona="You are brief.",
        voice="NATF2",
        seed=0,
        greedy=True,
        input_format=AudioFormat.G711_ULAW,
        output_format=AudioFormat.PCM16,
    )
    assert json.loads(session_update(options))["session"] == {
        "input_audio_format": "g711_ulaw",
        "output_audio_format": "pcm16",
        "sample_rate_hz": 8000,
        "instructions": "You are brief.",
        "voice": "NATF2",
        "extra_body": {"seed": 0, "audio_temperature": 0.0, "text_temperature": 0.0},
    }


def test_an_append_is_json_with_the_bytes_of_its_format():
    pcm = np.linspace(-1, 1, 33, dtype=np.float32)
    message = json.loads(append_message(AudioFormat.PCM_F32LE, pcm))
    assert message["type"] == "input_audio_buffer.append"
    assert base64.b64decode(message["audio"]) == pcm.tobytes()


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("ws://127.0.0.1:1/x", True),
        ("ws://localhost", True),
        ("ws://[::1]:80", True),
        ("ws://10.0.0.1", False),
        ("wss://example.org", False),
    ],
)
def test_loopback(url, answer):
    assert is_loopback(url) is answer
