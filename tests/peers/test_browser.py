"""The page in headless Chromium, as a person uses it: it looks, clicks, listens and talks.

Chromium plays a WAV file as its microphone. What the page hears is taken from the track it plays
(WebRTC) or from what its socket got (WebSocket). `SCREENSHOTS=docs/screenshots` keeps a picture of
every state there.
"""

import asyncio
import base64
import json
import os
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from engine.api import EngineConfig
from engine.echo import EchoModel
from engine.inprocess import InProcessEngine
from engine.model import Room
from engine.tiny import write_tiny
from media.formats import AudioFormat, decode
from recipes.bench.chromium import ALLOW_MICROPHONE, chromium
from tests.listening import likeness
from tests.tcp_relay import TcpRelay, Way

ROOT = Path(__file__).parents[2]
RATE = 24_000
KEY = "correct-horse-battery"
VOICES = ["listening", "hearing", "speaking", "both"]
TALKING = f"{VOICES}.includes(document.body.dataset.talk)"
ACKNOWLEDGED = "playback.acknowledged"
READY = "!document.getElementById('talk').disabled"

# Everything that the page shows as its state, in order, what it has read out, and how loud it has
# set the voice.
WATCH = """
addEventListener("DOMContentLoaded", () => {
  window.talks = [];
  window.volumes = [];
  new MutationObserver(() => {
    const { talk } = document.body.dataset;
    if (talk !== window.talks.at(-1)) window.talks.push(talk);
  }).observe(document.body, { attributes: true });
  window.said = [];
  new MutationObserver(() => window.said.push(document.getElementById("status").textContent))
    .observe(document.getElementById("status"), { childList: true });
  const voice = document.getElementById("speaker-out");
  voice.addEventListener("volumechange", () => window.volumes.push(voice.volume));
});
"""

# A server that takes its time to answer an offer.
SLOWLY = """
const ask = window.fetch;
window.fetch = async (path, ...rest) => {
  if (path.includes("calls?")) await new Promise((resolve) => { window.goOn = resolve; });
  return ask(path, ...rest);
};
"""

# A browser that takes its time with the answer, and a page whose patience is told of when it ends.
THINKING = """
const set = RTCPeerConnection.prototype.setRemoteDescription;
RTCPeerConnection.prototype.setRemoteDescription = async function (answer) {
  await new Promise((resolve) => { window.goOn = resolve; });
  return set.call(this, answer);
};
const later = window.setTimeout;
window.setTimeout = (work, ms, ...rest) => ms === 8000
  ? later(() => { work(); window.patience = "over"; }, 100)
  : later(work, ms, ...rest);
"""

# A browser that asks, and a person who takes their time to answer.
ASKING = """
const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  await new Promise((resolve) => { window.allow = resolve; });
  const stream = await open(wanted);
  [window.microphone] = stream.getAudioTracks();
  return stream;
};
"""

# A network in which, while `window.noWay`, no call comes about; and a page that waits for ever.
NO_WAY = """
const set = RTCPeerConnection.prototype.setRemoteDescription;
RTCPeerConnection.prototype.setRemoteDescription = function ({ type, sdp }) {
  const wrong = sdp.replaceAll(/a=ice-pwd:.*/g, "a=ice-pwd:" + "x".repeat(24));
  return set.call(this, { type, sdp: window.noWay ? wrong : sdp });
};
const later = window.setTimeout;
window.setTimeout = (work, ms, ...rest) => window.noWay && ms >= 8000 || later(work, ms, ...rest);
"""

# Keeps what holds the screen awake.
LOCKS = """
window.locks = [];
const request = WakeLock.prototype.request;
WakeLock.prototype.request = async function (kind) {
  window.locks.push(await request.call(this, kind));
  return window.locks.at(-1);
};
"""

# A browser that speaks no codec for video but one that nobody knows here.
ONLY_VP9 = """
const add = RTCPeerConnection.prototype.addTransceiver;
RTCPeerConnection.prototype.addTransceiver = function (...given) {
  const transceiver = add.apply(this, given);
  const { codecs } = RTCRtpReceiver.getCapabilities("video");
  transceiver.setCodecPreferences(codecs.filter(({ mimeType }) => mimeType === "video/VP9"));
  window.video = transceiver;
  return transceiver;
};
"""

# Notes what the page's WebSocket session is given of the microphone, in chunks, and after how many
# of them it was resumed; which events it takes; and up to which time in the response it plays.
LISTEN_IN = """(async () => {
  window.chunks = [];
  window.resumes = [];
  window.seqs = [];
  window.ends = [];
  const { WebSocketLine } = await import("/static/page/websocket.js");
  const { SessionSocket } = await import("/static/page/socket.js");
  const before = (kind, name, note) => {
    const method = kind.prototype[name];
    kind.prototype[name] = function (...given) {
      note(this, ...given);
      return method.apply(this, given);
    };
  };
  before(WebSocketLine, "append", (_, samples) => {
    window.chunks.push(btoa(String.fromCharCode(...new Uint8Array(samples))));
  });
  before(SessionSocket, "repeat", (_, taken) => window.resumes.push([taken, window.chunks.length]));
  before(WebSocketLine, "play", (_, { metadata }) => window.ends.push(metadata.audio_duration_ms));
  before(SessionSocket, "receive", (_, { server_event_seq: seq }) => seq && window.seqs.push(seq));
})()"""

# What the page's player plays of frames that come all at once, by their levels in tenths: each
# level with the milliseconds that it lasts.
CATCH_UP = """(async (levels) => {
  let Player = null;
  globalThis.sampleRate = %d;
  globalThis.AudioWorkletProcessor = class { port = { postMessage() {} }; };
  globalThis.registerProcessor = (_, kind) => { Player = kind; };
  await import("/static/page/player.js");
  const player = new Player();
  levels.forEach((level, place) => {
    const samples = new Float32Array(0.08 * sampleRate).fill(level / 10).buffer;
    player.push({ samples, response: "r", endMs: 80 * (place + 1) });
  });
  const runs = [];
  while (player.buffered) {
    const out = new Float32Array(120);
    player.process([], [[out]]);
    const level = Math.round(10 * out[0]);
    if (runs.at(-1)?.[0] !== level) runs.push([level, 0]);
    runs.at(-1)[1] += 1000 * out.length / sampleRate;
  }
  return runs;
})(%s)"""

# A page with little patience.
HASTE = """
const later = window.setTimeout;
window.setTimeout = (work, ms, ...rest) => later(work, ms >= 500 ? ms / 20 : ms, ...rest);
"""

# Notes how long the page waits before it asks again whether the server is there, and waits less;
# while `window.still`, it doesn't ask again.
ASKS = """
window.pauses = [];
const later = window.setTimeout;
window.setTimeout = (work, ms, ...rest) => {
  if (work.name !== "meetServer") return later(work, ms, ...rest);
  window.pauses.push(ms);
  return window.still ? 0 : later(work, ms / 20, ...rest);
};
"""

# Records the track that the page plays, with the page's own recorder.
RECORD = """(async (seconds) => {
  const context = new AudioContext({ sampleRate: %d });
  await context.audioWorklet.addModule("static/page/recorder.js");
  const mediaStream = document.getElementById("speaker-out").srcObject;
  const source = new MediaStreamAudioSourceNode(context, { mediaStream });
  const options = { numberOfOutputs: 0, processorOptions: { chunk: %d } };
  const recorder = new AudioWorkletNode(context, "recorder", options);
  const samples = await new Promise((resolve) => {
    recorder.port.onmessage = ({ data }) => resolve(data);
    source.connect(recorder);
  });
  await context.close();
  let text = "";
  for (const byte of new Uint8Array(samples)) text += String.fromCharCode(byte);
  return btoa(text);
})()"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny(directory)
    return directory


@pytest.fixture
def browse(tmp_path, voice, browser_is_here):
    """`async with browse(address) as page`: the page is open and its server is ready."""

    @asynccontextmanager
    async def open_page(address, *, script="", flags=(ALLOW_MICROPHONE,), ready=True):
        async with chromium(tmp_path / "profile", microphone=voice[0], flags=flags) as page:
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH + script)
            await page.look(1280, 800)
            await page.goto(address)
            if ready:
                await page.until(READY)
            yield page
            assert page.errors == []
            asked = {url.split("/")[2] for url in page.requests if url[:2] in ("ht", "ws")}
            assert asked == {address.split("/")[2]}, "a request to another host"

    return open_page


@pytest.fixture
async def relayed(start_process):
    """A relay, the address of the page behind it, and the server that it leads to."""
    async with TcpRelay() as relay:
        address = f"http://localhost:{relay.port}"
        options = ("--max-sessions", "1", "--allow-origin", address)
        with start_process("echo", *options) as server:
            relay.to = int(server.address.rpartition(":")[2])
            yield relay, address, server


def shown(address):
    """The address by the name that lets a page have the microphone."""
    return address.replace("127.0.0.1", "localhost")


async def picture(page, name, *, talk=None, phone=False, dark=False):
    """Takes a screenshot, while the page shows that it does `talk`, and keeps it if asked to."""
    if phone or dark:
        await page.look(*((390, 844) if phone else (1280, 800)), phone=phone, dark=dark)
    await page.run("new Promise((done) => setTimeout(done, 300))")  # for what fades
    png = await page.screenshot()
    while talk and await page.run("document.body.dataset.talk") != talk:
        await page.until(f"document.body.dataset.talk === '{talk}'", 40)
        png = await page.screenshot()
    if phone or dark:
        await page.look(1280, 800)
    assert len(png) > 8_000, "an empty page"
    if folder := os.environ.get("SCREENSHOTS"):
        await asyncio.to_thread(keep, ROOT / folder / f"{name}.png", png)


def keep(path, png):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)


async def record(page, seconds):
    """What the page plays, at 24 kHz."""
    text = await page.run(RECORD % (RATE, round(seconds * RATE)))
    return decode(AudioFormat.PCM16, base64.b64decode(text))


def of_epoch(text):
    """Whether a message is audio from after an interrupt."""
    return json.loads(text).get("metadata", {}).get("epoch", 0) > 0


def rms(pcm):
    return float(np.sqrt(np.mean(np.square(pcm))))


async def until_loud(page, seconds=1.5, threshold=0.02):
    """What is heard in a stretch in which someone speaks."""
    async with asyncio.timeout(40):
        while rms(heard := await record(page, seconds)) < threshold:
            pass
    return heard


async def choose(page, field, value):
    """Sets a control as its user would."""
    name = "checked" if isinstance(value, bool) else "value"
    await page.run(
        f"""(() => {{
          const field = document.getElementById({json.dumps(field)});
          field.{name} = {json.dumps(value)};
          field.dispatchEvent(new Event("input", {{bubbles: true}}));
          field.dispatchEvent(new Event("change", {{bubbles: true}}));
        }})()"""
    )


async def fits_phones(page):
    """On phones, narrow ones too, the controls and their names lie apart and in the window."""
    for width in (320, 390):
        await page.look(width, 640, phone=True)
        boxes = await page.run(
            """[...document.querySelectorAll(".dock :is(span, input, .talk)")]
               .filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect())
               .map(({ left, right }) => [left, right])"""
        )
        edges = [edge for box in boxes for edge in box]
        assert len(boxes) >= 4
        assert edges == sorted(edges), (width, boxes)
        assert edges[0] >= 0, (width, boxes)
        assert await page.run("document.documentElement.scrollWidth") == width
    await page.look(844, 390, phone=True)  # on its side nothing of a call is out of sight
    for element in (".bar", "#talk-state", "#timeline", "#readout", "#transcript", ".dock"):
        box = f"document.querySelector('{element}').getBoundingClientRect()"
        top, bottom = await page.run(f"[{box}.top, {box}.bottom]")
        assert 0 <= top < bottom <= 390, element
    await page.look(1280, 800)


async def test_a_call_to_echo_over_webrtc(start_process, browse, voice, all_free):
    with start_process("echo", "--max-sessions", "2") as server:
        async with browse(shown(server.address)) as page:
            assert await page.text("h1") == "Talk with echo"
            assert "Hello, can you hear me?" in await page.text("#examples")
            await picture(page, "start")
            await picture(page, "start-dark", dark=True)
            await picture(page, "start-phone", phone=True)
            # Cancelled, an echo would be gone: here it is what counts.
            for processing in ("echo-cancellation", "noise-suppression"):
                await choose(page, processing, False)
            await page.click("#talk")
            await page.until(TALKING)
            async with asyncio.timeout(60):  # a busy machine spoils a stretch, not all of them
                while likeness(await until_loud(page), voice[1], RATE) < 0.8:
                    pass
            await page.until("document.body.dataset.talk === 'both'", 40)
            await picture(page, "both", talk="both")
            await picture(page, "both-dark", talk="both", dark=True)
            await page.until("window.talks.includes('listening')", 40)
            talks = await page.run("window.talks")
            assert [talk for talk in talks if talk in ("asking", "connecting", "preparing")]
            assert await page.text("#line") == "WebRTC"
            await page.until("/^\\d+ ms$/.test(document.getElementById('delay').textContent)")
            assert (await page.text("#lost")).startswith("0")

            await page.press("m")
            await page.until("document.body.hasAttribute('data-muted')")
            await record(page, 0.5)  # what was on its way
            assert rms(await record(page, 3.0)) < 1e-3
            assert "muted" in await page.text("#hint")
            await picture(page, "muted")
            await page.click("#mute")
            await until_loud(page)

            await page.run("window.volumes.length = 0")
            await page.click("#interrupt")
            await page.until("window.volumes.includes(0) && window.volumes.at(-1) === 1")
            await choose(page, "volume", "0.5")
            await page.until("document.getElementById('speaker-out').volume === 0.5")
            await page.until("document.querySelector('#transcript .you svg')", 40)

            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'ended'")
            assert await page.text("#talk-state") == "Call ended"
            await picture(page, "ended")
            await all_free(server.address)


async def test_a_call_to_a_model_with_words_and_voices(start_process, browse, tiny, all_free):
    with start_process(str(tiny), "--max-sessions", "2") as server:
        async with browse(shown(server.address)) as page:
            voices = await page.run(
                "[...document.getElementById('voice').options].map((o) => o.text)"
            )
            assert voices == ["alto (usual)", "bass"]
            await picture(page, "start-voices")
            await page.click("#open-settings")
            await page.run("document.getElementById('advanced').open = true")
            await picture(page, "settings")
            await page.run("document.getElementById('settings').close()")
            for field, value in {"voice": "bass", "persona": "be brief", "seed": "7"}.items():
                await choose(page, field, value)
            await page.click("#talk")
            await page.until(TALKING)
            lines = "[...document.querySelectorAll('#transcript .model p')]"
            words = f"{lines}.map((line) => line.textContent).join(' ').split(' ').length"
            await page.until(f"{words} > 5")
            await page.until("['speaking', 'both'].includes(document.body.dataset.talk)")
            assert rms(await record(page, 1.0)) > 0.01
            await picture(page, "speaking", talk="speaking")
            await picture(page, "speaking-phone", talk="speaking", phone=True)
            await page.press("Escape")
            await page.until("document.querySelector('#transcript .model p.cut')")
            await page.until(
                f"{words} && document.querySelectorAll('#transcript .model').length > 1"
            )
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'ended'")
            await page.click("#choose")
            assert await page.text("#talk") == "Start talking"
            assert await page.run("document.getElementById('voice').value") == "bass"
            await all_free(server.address)


async def test_without_webrtc_it_goes_over_a_websocket(start_process, browse, voice, all_free):
    frames = []
    with start_process("echo", "--max-sessions", "2") as server:
        async with browse(shown(server.address), script="delete window.RTCPeerConnection;") as page:
            page.on_frame = frames.append
            for processing in ("echo-cancellation", "noise-suppression"):
                await choose(page, processing, False)
            await page.click("#talk")
            await page.until("document.body.dataset.talk === 'both'", 40)
            await page.until("document.getElementById('line').textContent === 'WebSocket'")
            await picture(page, "websocket", talk="both")
            await page.until("document.body.dataset.talk === 'listening'", 40)
            deltas = [json.loads(text)["delta"] for text in frames if "output_audio.delta" in text]
            audio = base64.b64decode
            heard = np.concatenate([decode(AudioFormat.PCM_F32LE, audio(text)) for text in deltas])
            assert likeness(heard, voice[1], RATE) > 0.8
            # The server knows what was heard: never more than was sent, and up to an interrupt.
            acks = [ack for ack in map(json.loads, frames) if ack["type"] == ACKNOWLEDGED]
            heard_ms = [ack["played_ms"] for ack in acks]
            assert heard_ms == sorted(heard_ms)
            assert 1_000 < heard_ms[-1] <= 80 * len(deltas)
            frames.clear()
            await page.click("#interrupt")
            async with asyncio.timeout(20):
                while not (after := [place for place, text in enumerate(frames) if of_epoch(text)]):
                    await asyncio.sleep(0.02)
            assert any(ACKNOWLEDGED in text for text in frames[: after[0]])
            await page.until("document.body.dataset.talk === 'both'", 40)
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'ended'")
            await all_free(server.address)
            # Late frames are made up for in a pause, down to 240 ms that wait.
            played = await page.run(CATCH_UP % (RATE, [1, 0, 0, 2, 3]))
            assert played == [[1, 80], [0, 80], [2, 80], [3, 80]]


async def test_a_websocket_that_breaks_is_replaced_and_nothing_is_lost_or_doubled(
    relayed, browse, all_free
):
    """Cut; then frozen, with voices under way, for so long that the page gives it up; and when
    another has the session it comes to life again.
    """
    frames = []
    relay, address, server = relayed
    async with browse(address) as page:
        page.on_frame = frames.append
        await page.run(LISTEN_IN)
        await choose(page, "transport", "websocket")
        await page.click("#talk")
        await page.until("document.body.dataset.talk === 'both'", 40)
        relay.cut()
        await page.until("window.talks.includes('reconnecting')")
        await page.until(TALKING)
        frozen = [relay.freeze(Way.DOWN)]
        await more_chunks(page)
        frozen.append(relay.freeze(Way.UP))
        await page.until("document.body.dataset.talk === 'reconnecting'")
        await page.until(TALKING)
        for way in frozen:
            way.set()
        await more_chunks(page)
        assert await page.run("document.getElementById('problem').hidden")
        seqs, ends = await page.run("[window.seqs, window.ends]")
        chunks, resumes = await page.run("[window.chunks, window.resumes]")
        await page.click("#talk")
        await page.until("document.body.dataset.phase === 'ended'")
        await all_free(server.address)
        page.errors.clear()  # Chromium counts the cut
    assert seqs == list(range(1, len(seqs) + 1))
    assert ends == [80 * (place + 1) for place in range(len(ends))]
    events = [json.loads(text) for text in frames]
    deltas = {
        e["server_event_seq"]: e["delta"] for e in events if "output_audio.delta" in e["type"]
    }
    audio = [base64.b64decode(deltas[seq]) for seq in sorted(deltas)]
    heard = np.concatenate([decode(AudioFormat.PCM_F32LE, data) for data in audio])
    said = expected(chunks, resumes)
    assert len(resumes) == 2
    assert len(heard) > len(said) - RATE
    assert np.array_equal(heard[: len(said)], said[: len(heard)])


async def more_chunks(page):
    """Waits until the microphone has given another second."""
    count = await page.run("window.chunks.length")
    await page.until(f"window.chunks.length > {count + 50}")


def expected(chunks, resumes):
    """What the server hears of the microphone's chunks: all but what it had not taken when the
    session was resumed and was older than 0.4 s then.
    """
    samples = [decode(AudioFormat.PCM16, base64.b64decode(text)) for text in chunks]
    said, lost = np.concatenate(samples), 0
    for taken, count in resumes:
        gap = max(0, count * len(samples[0]) - lost - round(0.4 * RATE) - taken)
        said = np.concatenate((said[:taken], said[taken + gap :]))
        lost += gap
    return said


async def test_a_call_that_can_not_go_on_says_so_and_begins_anew(relayed, browse):
    frames = []
    relay, address, server = relayed
    async with browse(address, script=HASTE) as page:
        page.on_frame = frames.append
        await choose(page, "transport", "websocket")
        await page.click("#talk")
        await page.until(TALKING)
        await page.until("document.body.dataset.talk === 'both'", 40)
        relay.refusing = True
        relay.cut()
        await page.until("document.body.dataset.talk === 'reconnecting'")
        await page.press("Escape")  # which the server hears of when it can
        relay.refusing = False
        async with asyncio.timeout(20):
            while not any(map(of_epoch, frames)):
                await asyncio.sleep(0.02)
        await page.until("document.body.dataset.talk === 'both'", 40)
        relay.refusing = True
        relay.cut()
        await page.until("document.body.dataset.talk === 'reconnecting'")
        await picture(page, "reconnecting", talk="reconnecting")
        await page.until("!document.getElementById('problem').hidden")
        assert await page.text("#problem-title") == "The connection was lost"
        relay.refusing = False
        await page.click("#retry")
        await page.until(TALKING)
        assert await page.run("document.getElementById('problem').hidden")

        relay.refusing = True
        relay.cut()
        await page.until("document.body.dataset.talk === 'reconnecting'")
        url = server.address.replace("http", "ws") + "/v1/realtime?duplex=1"
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
            await socket.send_json({"type": "session.update", "session": {}})
            while (await socket.receive_json())["type"] != "session.updated":
                pass
            relay.refusing = False
            await page.until("!document.getElementById('problem').hidden")
        expected = "The call could not be taken up again"
        assert await page.text("#problem-title") == expected
        assert await page.run("document.getElementById('retry').checkVisibility()")
        page.errors.clear()


async def test_a_websocket_that_is_refused_is_told_from_a_server_that_is_not_there(
    start_process, browse
):
    async with TcpRelay() as relay:
        with start_process("echo", "--max-sessions", "1") as server:  # which allows no such origin
            relay.to = int(server.address.rpartition(":")[2])
            async with browse(f"http://localhost:{relay.port}") as page:
                await choose(page, "transport", "websocket")
                await page.click("#talk")
                await page.until("!document.getElementById('problem').hidden")
                expected = "The server does not take the connection"
                assert await page.text("#problem-title") == expected
                fix = await page.text("#problem-fix")
                assert f"--allow-origin http://localhost:{relay.port}." in fix
                page.errors.clear()  # the 403


@pytest.mark.parametrize("transport", ["webrtc", "websocket"])
async def test_a_model_that_sees_is_shown_the_camera(start_process, browse, all_free, transport):
    """Chromium's own camera shows a green picture."""
    said = "[...document.querySelectorAll('#transcript .model p')].map((p) => p.textContent)"
    shown_there = "document.getElementById('camera').checkVisibility()"
    with start_process("echo-video", "--max-sessions", "1") as server:
        async with browse(shown(server.address)) as page:
            await choose(page, "transport", transport)
            assert not await page.run(shown_there)
            await page.click("#talk")
            await page.until(TALKING)
            await page.click("#camera")
            await page.until(f"{said}.join().includes('I see green.')")
            assert await page.run("document.getElementById('camera').ariaPressed") == "true"
            assert await page.run("document.getElementById('camera-view').videoWidth") > 0
            if transport == "webrtc":
                await picture(page, "camera")
                await fits_phones(page)
            await page.press("c")
            await page.until("document.getElementById('camera-view').srcObject === null")
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'ended'")
            await all_free(server.address)


async def test_video_that_nobody_could_decode_is_no_reason_to_refuse_a_call(
    start_process, browse, all_free
):
    with start_process("echo-video", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=ONLY_VP9) as page:
            await choose(page, "transport", "webrtc")
            await page.click("#talk")
            await page.until(TALKING)
            assert await page.run("window.video.currentDirection") in ("inactive", "stopped")
            await page.until("document.getElementById('delay').textContent.endsWith('ms')")
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'ended'")
            await all_free(server.address)


async def test_the_microphone_may_change_and_a_call_may_be_given_up(
    start_process, browse, all_free
):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=SLOWLY + NO_WAY + LOCKS) as page:
            assert not await page.run("document.getElementById('camera').checkVisibility()")
            await page.click("#talk")
            await page.until("window.goOn")
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'idle'")
            await page.run("window.goOn()")
            await all_free(server.address)
            for no_way in ("true", "false"):
                await page.run(f"window.goOn = null, window.noWay = {no_way}")
                await page.click("#talk")
                await page.until("window.goOn")
                await page.run("window.goOn()")
                if no_way == "true":
                    await page.until("document.body.dataset.talk === 'connecting'")
                    await page.click("#talk")
                    await all_free(server.address)
            await page.until(TALKING)
            for field in ("echo-cancellation", "noise-suppression"):
                await choose(page, field, False)
            await until_loud(page)
            await page.run("document.getElementById('transcript').replaceChildren()")
            await page.until("document.querySelector('#transcript .you svg')", 40)  # it is measured
            assert await page.run("document.getElementById('problem').hidden")
            await fits_phones(page)
            await page.call("Target.createTarget", url="about:blank")  # a tab before this one
            await page.until("document.hidden && window.locks[0].released")
            await page.call("Page.bringToFront")
            await page.until("window.locks.length === 2 && !window.locks[1].released")
            await page.click("#talk")
            await page.until("window.locks[1].released")


async def test_what_goes_wrong_is_told_with_its_fix(start_process, browse, all_free):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=ASKS, flags=()) as page:
            denied = {"permission": {"name": "microphone"}, "setting": "denied"}
            await page.call("Browser.setPermission", **denied)
            await page.click("#talk")
            await page.until("!document.getElementById('problem').hidden")
            assert await page.text("#problem-title") == "The microphone is blocked"
            await picture(page, "problem")
            await page.click("#close-problem")
            await page.call("Browser.setPermission", **(denied | {"setting": "granted"}))

            url = server.address.replace("http", "ws") + "/v1/realtime?duplex=1"
            async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
                await socket.send_json({"type": "session.update", "session": {}})
                while (await socket.receive_json())["type"] != "session.updated":
                    pass
                await page.click("#talk")
                await page.until("!document.getElementById('problem').hidden")
                assert await page.text("#problem-title") == "No room for another call"
                assert "The one conversation slot" in await page.text("#problem-fix")
                report = await page.run("document.getElementById('problem-details').textContent")
                assert "resource_exhausted" in report
                assert "429 /v1/realtime/calls" in report
            page.errors.clear()  # Chromium counts the 429

            await all_free(server.address)
            await page.click("#talk")
            await page.until(TALKING)
            server.process.kill()
            await page.until("!document.getElementById('problem').hidden")
            assert await page.text("#problem-title") == "The connection was lost"
            await page.run("window.pauses.length = 0")
            await page.until("window.pauses.length >= 5")
            pauses = await page.run("window.pauses")
            assert pauses[0] < pauses[1] < pauses[2] <= max(pauses) < 15_000, pauses
            await page.run("window.still = true, window.pauses.length = 0")
            await page.until("window.pauses.length")  # once more, and then no more by itself
            title = "document.getElementById('problem-title').textContent"
            port = int(server.address.rpartition(":")[2])
            with start_process("echo", "--max-sessions", "1", port=port) as second:
                await page.run("dispatchEvent(new Event('online'))")
                await page.until(f"{title} === 'The call was cut off'")
                assert await page.run("window.pauses.at(-1)") < 3_000
                second.process.kill()
                await page.run("window.still = false")
                await page.click("#retry")
                await page.until(f"{title}.includes('not answer')")
            with start_process("echo", "--max-sessions", "2", port=port):
                await page.until("document.getElementById('problem').hidden")
                await page.until(READY)
                assert "2 of 2 lines free" in await page.text("#server")
            page.errors.clear()


async def test_a_server_too_slow_for_another_call_is_not_called_full(start_server, browse):
    class Slow(EchoModel):
        def room(self):
            return Room(enough=False, pages=9, free_pages=2)

    engine = InProcessEngine(lambda: Slow(3), EngineConfig(model="echo"))
    async with start_server(engine=engine) as server, browse(shown(server.address)) as page:
        await page.click("#talk")
        await page.until("!document.getElementById('problem').hidden")
        assert "3 of 3 lines free" in await page.text("#server")
        assert await page.text("#problem-title") == "No room for another call"
        assert "can't keep up with another conversation" in await page.text("#problem-fix")
        page.errors.clear()  # Chromium counts the 429


async def test_a_page_from_elsewhere_says_what_it_needs(start_process, browse):
    """Neither https nor localhost, and a key is wanted; then with https all is well."""
    flags = (
        ALLOW_MICROPHONE,
        "--host-resolver-rules=MAP duplex.test 127.0.0.1",
        "--ignore-certificate-errors",
    )
    with start_process("echo", "--max-sessions", "1", "--api-key", KEY) as server:
        address = server.address.replace("127.0.0.1", "duplex.test")
        async with browse(address, flags=flags, ready=False) as page:
            await page.until("document.getElementById('key-form').checkVisibility()")
            assert await page.text("#problem-title") == "This server wants an API key"
            await picture(page, "key")
            assert await page.run("document.activeElement.id") == "key"
            await choose(page, "key", KEY + "r")
            await page.click("#key-form button")
            wrong = "This server does not take that API key"
            await page.until(f"document.getElementById('problem-title').textContent === '{wrong}'")
            await choose(page, "key", KEY)
            await page.click("#key-form button")
            await page.until(READY)
            await page.click("#talk")
            await page.until("!document.getElementById('problem').hidden")
            assert await page.text("#problem-title") == "The microphone needs https or localhost"
            assert "--tls self-signed" in await page.text("#problem-fix")
            await picture(page, "insecure")
            await page.click("#copy-problem")  # where there is no clipboard API
            await page.until("document.getElementById('copy-problem').textContent === 'Copied'")
            assert "insecure" in await page.run("getSelection().toString()")
            page.errors.clear()  # the 401
    secure = ("--tls", "self-signed", "--api-key", KEY)
    with start_process("echo", "--max-sessions", "1", *secure) as server:
        address = server.address.replace("127.0.0.1", "duplex.test")
        async with browse(address, flags=flags, ready=False) as page:
            await page.until("document.getElementById('key-form').checkVisibility()")
            await choose(page, "key", KEY)
            await page.click("#key-form button")
            await page.until(READY)
            await page.click("#talk")
            await page.until(TALKING)
            assert await page.run("document.getElementById('problem').hidden")
            page.errors.clear()


async def test_a_call_given_up_before_its_answer_is_read_leaves_no_fault(
    start_process, browse, all_free
):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=THINKING) as page:
            await page.click("#talk")
            await page.until("window.goOn")
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'idle'")
            await page.run("window.goOn()")
            await page.until("window.patience === 'over'")
            await all_free(server.address)


async def test_it_can_be_used_by_keyboard_alone(start_process, browse):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=SLOWLY + ASKING) as page:
            names = []
            for _ in range(3):
                await page.press("Tab")
                names.append(await page.run("document.activeElement.id"))
            assert names == ["", "open-settings", "talk"]  # first the brand, which has no id
            await page.press("Enter")
            await page.until("window.allow")
            await page.press("m")
            await page.run("window.allow()")
            await page.until("document.body.dataset.talk === 'preparing'")
            assert not await page.run("window.microphone.enabled")
            await page.press("m")
            await page.until("window.microphone.enabled")
            await picture(page, "preparing")
            await page.until("window.goOn")
            await page.run("window.goOn()")
            await page.until(TALKING)
            await page.until("document.body.dataset.talk === 'listening'")
            await picture(page, "listening", talk="listening")
            for focused in (
                "document.activeElement.blur()",
                "document.getElementById('volume').focus()",
            ):
                await page.run(focused)
                await page.press("m")
                await page.until("document.body.hasAttribute('data-muted')")
                await page.press("m")
                await page.until("!document.body.hasAttribute('data-muted')")
            await page.run("document.activeElement.blur()")
            await page.until("window.talks.includes('both')", 40)
            said, talks = await page.run("[window.said, window.talks]")
            began = sum(now in VOICES and last not in VOICES for last, now in pairwise(talks))
            assert said.count("You can talk now") == began > 0
            heard = [text for text in said if text.startswith("Microphone")]
            assert heard == 3 * ["Microphone muted", "Microphone on"]
            assert not [text for text in said if text.startswith(("Hearing", "Speaking", "Both"))]
            unnamed = await page.run(
                """[...document.querySelectorAll("button, input, select, textarea, canvas")]
                   .filter((e) => e.checkVisibility() && !e.innerText && !e.ariaLabel &&
                     !(e.labels && e.labels.length)).map((e) => e.outerHTML)"""
            )
            assert unnamed == []
            tree = await page.call("Accessibility.getFullAXTree")
            roles = {(n["role"]["value"], n.get("name", {}).get("value")) for n in tree["nodes"]}
            assert {("button", "Hang up"), ("button", "Mute"), ("slider", "Volume")} <= roles
