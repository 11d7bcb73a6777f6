"""`MoshiClient` of the PyPI package `fujielab-moshi-client`, unmodified, on `/api/chat`.

Judged with 0.1.2, installed without its dependencies (it would bring a sound device's library).
Quirks: it takes the server's first message for the handshake, whatever it is, so nothing may come
before; it sends packets of 80 ms, a page each, and the headers in messages of their own; its pages
give a packet of 255 bytes and more a single lacing value, which is no Ogg and is mended here; its
query has names that are ignored here; it expects one packet in a page; it strips its text.
It wants a libopus of the system; where there is none, the test lends it PyAV's.
"""

import ctypes.util
import importlib
import importlib.util
from pathlib import Path

import av
import numpy as np
import pytest

FRAME = 1_920


@pytest.fixture
def client(monkeypatch):
    for name in ("fujielab.moshi.moshi_client_lib", "opuslib", "janus"):
        found = importlib.util.find_spec(name.partition(".")[0])
        assert found, "install it: pip install --no-deps -r tests/peers/requirements.txt"
    if ctypes.util.find_library("opus") is None:
        (bundled,) = Path(av.__file__).parent.with_name("av.libs").glob("libopus-*")
        find = ctypes.util.find_library
        monkeypatch.setattr(
            ctypes.util, "find_library", lambda name: str(bundled) if name == "opus" else find(name)
        )
    module = importlib.import_module("fujielab.moshi.moshi_client_lib")
    made = module.MoshiClient()
    yield made
    made.disconnect()


@pytest.mark.parametrize("model", ["echo", "tiny"])
def test_a_conversation(start_process, client, model):
    said = (np.sin(np.arange(30 * FRAME) / 15) / 4).astype(np.float32)
    with start_process(model, "--max-sessions", "1") as server:
        client.connect(server.address.replace("http", "ws") + "/api/chat")
        client.add_audio_input(said)
        heard = [client.get_audio_output(timeout=30) for _ in range(26)]
        assert all(len(frame) == FRAME for frame in heard)
        level = np.sqrt(np.mean(np.concatenate(heard[2:]) ** 2))
        if model == "echo":
            assert abs(level - np.sqrt(np.mean(said**2))) < 0.02
        else:
            assert level > 1e-3
            assert client.get_text_output(timeout=30)
        assert client.is_connected()
        client.disconnect()
