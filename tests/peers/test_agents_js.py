"""OpenAI's agents SDK for JavaScript, unmodified, over a WebSocket against a running server.

Judged with @openai/agents-realtime 0.20.0 on Node 20. Quirks: it opens with semantic_vad,
transcription and tracing, and sends a second session.update for the tracing; an event that does
not fit its schema is dropped without a word, so what arrives as its own typed events is what
counts; at speech_started it truncates what it is playing and leaves the cancelling to the server;
after each truncation it asks for the item again.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from media.clips import read_clip
from tests.turn_events import TURN

HERE = Path(__file__).parent
RATE = 24_000


@pytest.fixture
def agents(recording, tmp_path):
    """Runs the client's script, and gives what it told of."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules/@openai/agents-realtime").exists():
        pytest.skip("the SDK is not here: npm install --no-package-lock --prefix tests/peers")
    pcm = read_clip(recording.read_bytes(), RATE, max_s=60)
    file = tmp_path / "speech.pcm"
    file.write_bytes((pcm * 32767).astype("<i2").tobytes())

    def run(url):
        done = subprocess.run(
            [node, str(HERE / "agents.mjs"), url, str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout[-2_000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_a_conversation_with_an_interruption(agents, start_process):
    # echo answers 8 s later, when the user of the recording has been silent for a while
    with start_process("echo", "--delay-frames", "100") as server:
        told = agents(server.address.replace("http", "ws", 1) + "/v1/realtime?model=gpt-realtime")
    assert [line for line in told if line["kind"] == "error"] == []
    events = [line["event"] for line in told if line["kind"] == "event"]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["session.created", "session.updated", "session.updated"]
    first = kinds.index("response.done")
    assert kinds[3 : first + 1] == TURN
    (turn,) = [line for line in told if line["kind"] == "turn"]
    assert turn["audio"] > 4 * RATE * 2

    by_kind = {event["type"]: event for event in events}
    session = by_kind["session.updated"]["session"]
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    substituted = {item["field"] for item in session["substitutions"]}
    assert {"session.model", "session.audio.input.transcription"} <= substituted

    done = events[-1 - kinds[::-1].index("response.done")]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    truncated = by_kind["conversation.item.truncated"]
    assert truncated["item_id"] == done["output"][0]["id"]
    assert kinds.index("conversation.item.truncated") < kinds.index("conversation.item.retrieved")

    (history,) = [line["history"] for line in told if line["kind"] == "history"]
    # all was sent at once, so by the SDK's own clock even the first answer wasn't heard to its end
    assert [(item["role"], item["status"]) for item in history] == [
        ("user", "completed"),
        ("assistant", "incomplete"),
        ("user", "completed"),
        ("user", "completed"),
        ("assistant", "incomplete"),
    ]
    assert history[2]["content"][0]["text"] == "Hello?"
    assert history[4]["itemId"] == truncated["item_id"]
