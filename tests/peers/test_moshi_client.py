"""`moshi.client` of the PyPI package `moshi`, unmodified, against a running server.

Judged with moshi 0.2.13, installed without its dependencies. Importing its parent package would
import its models, so an empty one stands in; so does a sound device whose clock is the answers:
it records and plays a frame at a time. Quirks: the client sends audio, the Ogg headers first, as
soon as it is connected, without waiting for the handshake; it warns of kinds that it doesn't know,
and the handshake is one of those; it plays whole frames of 1920 samples; it never says goodbye.
"""

import argparse
import asyncio
import importlib
import importlib.util
import io
import queue
import sys
import threading
import types
from contextlib import suppress
from urllib.parse import urlsplit

import numpy as np
import pytest

FRAME = 1_920


def voice(frames):
    """Harmonics of a pitch that wanders, with the swell of a voice."""
    time = np.arange(frames * FRAME) / 24_000
    phase = 2 * np.pi * np.cumsum(140 + 40 * np.sin(2 * np.pi * 1.7 * time)) / 24_000
    sound = sum(np.sin(number * phase) / number for number in range(1, 20))
    return (0.2 * sound * (1 + np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def likeness(said, heard, most=1_000):
    """How like what was said it is, whatever its delay within `most` samples: 1 is the same."""
    length = len(heard) - most
    return max(np.corrcoef(said[:length], heard[lag:][:length])[0, 1] for lag in range(most))


class Device:
    """Records what it is given to say, and keeps what it is given to play."""

    def __init__(self, said):
        self.said = said.reshape(-1, FRAME, 1)
        self.heard = np.zeros((0, FRAME), np.float32)
        self.enough = threading.Event()
        self._streams = {}

    def stream(self, kind):
        device = self

        class Stream:
            def __init__(self, *, samplerate, channels, blocksize, callback):
                assert (samplerate, channels, blocksize) == (24_000, 1, FRAME)
                device._streams[kind] = callback

            def __enter__(self):
                if kind == "out":
                    threading.Thread(target=device._run, daemon=True).start()

            def __exit__(self, *_):
                pass

        return Stream

    def _run(self):
        record, play = self._streams["in"], self._streams["out"]
        waiting = play.__self__._output_queue
        for frame in self.said:
            record(frame, FRAME, None, None)
            with suppress(queue.Empty):  # the handshake isn't over, or the model starts up
                self._play(play, waiting, timeout_s=5.0 if len(self.heard) else 0.1)
        self.enough.set()

    def _play(self, play, waiting, timeout_s):
        with waiting.not_empty:
            if not waiting.not_empty.wait_for(waiting._qsize, timeout_s):
                raise queue.Empty
        out = np.zeros((FRAME, 1), np.float32)
        play(out, FRAME, None, None)
        self.heard = np.concatenate((self.heard, out[None, :, 0]))


@pytest.fixture
def talk(monkeypatch):
    """Holds a conversation: returns what was played, printed, and logged."""
    found = importlib.util.find_spec("moshi")
    assert found is not None, "install it: pip install --no-deps moshi==0.2.13"
    parent, sounddevice = types.ModuleType("moshi"), types.ModuleType("sounddevice")
    parent.__path__ = list(found.submodule_search_locations)
    for name in ("moshi.client", "moshi.client_utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "moshi", parent)
    monkeypatch.setitem(sys.modules, "sounddevice", sounddevice)

    async def converse(server, said):
        device = Device(said)
        sounddevice.InputStream = device.stream("in")
        sounddevice.OutputStream = device.stream("out")
        client = importlib.import_module("moshi.client")
        utils = importlib.import_module("moshi.client_utils")
        text, log = io.StringIO(), io.StringIO()
        where = urlsplit(server.address)
        arguments = argparse.Namespace(host=where.hostname, port=where.port, https=False, url=None)
        running = asyncio.create_task(client.run(utils.RawPrinter(text, log), arguments))
        done = asyncio.create_task(asyncio.to_thread(device.enough.wait, 60))
        await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
        assert done.done(), (running, log.getvalue())
        running.cancel()
        await asyncio.wait({running})
        return device.heard.reshape(-1), text.getvalue(), log.getvalue()

    return converse


def check_log(log):
    warnings = {line for line in log.splitlines() if not line.startswith("Info: ")}
    assert warnings <= {"Warning: unknown message kind 0", "Warning: unknown message kind 6"}, log


async def test_it_hears_its_own_voice_from_an_echo(start_process, talk):
    said = voice(30)
    with start_process("echo", "--max-sessions", "1") as server:
        heard, text, log = await talk(server, said)
    check_log(log)
    assert text == ""
    assert len(heard) >= 25 * FRAME
    known = slice(5 * FRAME, None)  # by then the encoders, its and ours, have heard enough
    assert likeness(said[-len(heard) :][known], heard[known]) > 0.4


async def test_one_conversation_after_another_on_one_slot(start_process, talk):
    with start_process("echo", "--max-sessions", "1") as server:
        for _ in range(3):
            heard, _, log = await talk(server, voice(8))
            check_log(log)
            assert len(heard) >= 4 * FRAME


async def test_a_model_speaks_to_it(start_process, talk):
    with start_process("tiny", "--max-sessions", "1") as server:
        heard, text, log = await talk(server, voice(40))
    check_log(log)
    assert len(heard) >= 30 * FRAME
    assert np.sqrt(np.mean(heard**2)) > 1e-3
    assert text
