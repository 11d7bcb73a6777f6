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
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from engine.tiny import write_tiny
from media.formats import AudioFormat, decode
from recipes.bench.chromium import ALLOW_MICROPHONE, chromium
from tests.listening import likeness

ROOT = Path(__file__).parents[2]
RATE = 24_000
KEY = "correct-horse-battery"
TALKING = "['listening', 'hearing', 'speaking', 'both'].includes(document.body.dataset.talk)"
ACKNOWLEDGED = "playback.acknowledged"
READY = "!document.getElementById('talk').disabled"

# Everything that the page shows as its state, in order, and how loud it has set the voice.
WATCH = """
addEventListener("DOMContentLoaded", () => {
  window.talks = [];
  window.volumes = [];
  new MutationObserver(() => {
    const { talk } = document.body.dataset;
    if (talk !== window.talks.at(-1)) window.talks.push(talk);
  }).observe(document.body, { attributes: true });
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


def shown(address):
    """The address by the name that lets a page have the microphone."""
    return address.replace("127.0.0.1", "localhost")


async def picture(page, name, *, phone=False, dark=False):
    """Takes a screenshot, and keeps it if asked to."""
    if phone or dark:
        await page.look(*((390, 844) if phone else (1280, 800)), phone=phone, dark=dark)
    await page.run("new Promise((done) => setTimeout(done, 300))")  # for what fades
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
            await picture(page, "both")
            await picture(page, "both-dark", dark=True)
            await page.until("window.talks.includes('listening')", 40)
            talks = await page.run("window.talks")
            assert [talk for talk in talks if talk in ("asking", "connecting", "preparing")]
            assert await page.text("#line") == "WebRTC"
            await page.until("/^\\d+ ms$/.test(document.getElementById('delay').textContent)")
            assert (await page.text("#lost")).startswith("0")

            await page.press("m")
            await page.until("document.getElementById('mute').ariaPressed === 'true'")
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
            await picture(page, "speaking")
            await picture(page, "speaking-phone", phone=True)
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
            await picture(page, "websocket")
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


async def test_the_microphone_may_change_and_a_call_may_be_given_up(
    start_process, browse, all_free
):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=SLOWLY) as page:
            assert not await page.run("document.getElementById('camera').checkVisibility()")
            await page.click("#talk")
            await page.until("window.goOn")
            await page.click("#talk")
            await page.until("document.body.dataset.phase === 'idle'")
            await page.run("window.goOn()")
            await all_free(server.address)
            await page.run("window.goOn = null")
            await page.click("#talk")
            await page.until("window.goOn")
            await page.run("window.goOn()")
            await page.until(TALKING)
            for field in ("echo-cancellation", "noise-suppression"):
                await choose(page, field, False)
            await until_loud(page)
            await page.run("document.getElementById('transcript').replaceChildren()")
            await page.until("document.querySelector('#transcript .you svg')", 40)  # it is measured
            assert await page.run("document.getElementById('problem').hidden")
            await fits_phones(page)


async def test_what_goes_wrong_is_told_with_its_fix(start_process, browse, all_free):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), flags=()) as page:
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
                assert await page.text("#problem-title") == "All lines are busy"
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
            page.errors.clear()


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
            await choose(page, "key", KEY)
            await page.click("#key-form button")
            await page.until(READY)
            await page.click("#talk")
            await page.until("!document.getElementById('problem').hidden")
            assert await page.text("#problem-title") == "The microphone needs https or localhost"
            assert "--tls self-signed" in await page.text("#problem-fix")
            await picture(page, "insecure")
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


async def test_it_can_be_used_by_keyboard_alone(start_process, browse):
    with start_process("echo", "--max-sessions", "1") as server:
        async with browse(shown(server.address), script=SLOWLY) as page:
            names = []
            for _ in range(3):
                await page.press("Tab")
                names.append(await page.run("document.activeElement.id"))
            assert names == ["", "open-settings", "talk"]  # first the brand, which has no id
            await page.press("Enter")
            await page.until("document.body.dataset.talk === 'preparing'")
            await picture(page, "preparing")
            await page.until("window.goOn")
            await page.run("window.goOn()")
            await page.until(TALKING)
            await page.until("document.body.dataset.talk === 'listening'")
            await picture(page, "listening")
            await page.run("document.activeElement.blur()")
            unnamed = await page.run(
                """[...document.querySelectorAll("button, input, select, textarea, canvas")]
                   .filter((e) => e.checkVisibility() && !e.innerText && !e.ariaLabel &&
                     !(e.labels && e.labels.length)).map((e) => e.outerHTML)"""
            )
            assert unnamed == []
            tree = await page.call("Accessibility.getFullAXTree")
            roles = {(n["role"]["value"], n.get("name", {}).get("value")) for n in tree["nodes"]}
            assert {("button", "Hang up"), ("button", "Mute"), ("slider", "Volume")} <= roles
