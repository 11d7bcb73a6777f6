"""OpenAI's agents SDK for JavaScript, unmodified, over WebRTC from a page in Chromium.

Judged with the browser bundle of @openai/agents-realtime 0.20.0. Quirks: it takes only keys that
begin with ek_; it posts `application/sdp` and reads the call's id from `Location`, which the page
may read only if CORS exposes it; it names itself in the header X-OpenAI-Agents-SDK; its settings
come by `session.update` when the channel opens.
The page is of another origin than the server, as an application's own would be.
"""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from recipes.bench.chromium import chromium

BUNDLE = Path(__file__).parent / "node_modules/@openai/agents-realtime/dist/bundle"
KEY = "correct-horse-battery"

PAGE = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import * as sdk from "/sdk/openai-realtime-agents.mjs";

window.told = [];
window.start = async (baseUrl, apiKey) => {
  const audio = { echoCancellation: false, noiseSuppression: false };
  const mediaStream = await navigator.mediaDevices.getUserMedia({ audio });
  const audioElement = document.body.appendChild(new Audio());
  const transport = new sdk.OpenAIRealtimeWebRTC({ baseUrl, mediaStream, audioElement });
  const agent = new sdk.RealtimeAgent({ name: "Guide", instructions: "Be kind.", voice: "marin" });
  window.session = new sdk.RealtimeSession(agent, { transport });
  session.on("transport_event", (event) => told.push(event));
  session.on("error", ({ error }) => told.push({ type: "sdk_error", error }));
  await session.connect({ apiKey });
  window.loudest = 0;
  const context = new AudioContext();
  const heard = new AnalyserNode(context);
  new MediaStreamAudioSourceNode(context, { mediaStream: audioElement.srcObject }).connect(heard);
  const samples = new Float32Array(heard.fftSize);
  setInterval(() => {
    heard.getFloatTimeDomainData(samples);
    window.loudest = Math.max(window.loudest, ...samples);
  }, 20);
  return transport.callId;
};
</script>"""


@pytest.fixture
async def page_address():
    """A page with the SDK, on localhost."""
    if not BUNDLE.exists():
        pytest.skip("the SDK is not here: npm install --no-package-lock --prefix tests/peers")

    async def page(_):
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_static("/sdk", BUNDLE)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://localhost:{runner.addresses[0][1]}"
    await runner.cleanup()


async def secret(address):
    headers = {"Authorization": f"Bearer {KEY}"}
    url = address + "/v1/realtime/client_secrets"
    body = {"session": {"type": "realtime", "model": "gpt-realtime"}}
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as made:
        return (await made.json())["value"]


@asynccontextmanager
async def opened(tmp_path, voice, address):
    async with chromium(tmp_path / "profile", microphone=voice[0]) as page:
        await page.goto(address)
        await page.until("window.start")
        yield page


async def test_a_conversation_over_webrtc(
    browser_is_here, page_address, start_process, tmp_path, voice, all_free
):
    key = ("--api-key", KEY, "--allow-origin", page_address)
    with start_process("echo", *key, DUPLEX_DELAY_FRAMES="25") as server:
        async with opened(tmp_path, voice, page_address) as page:
            url = json.dumps(server.address + "/v1/realtime/calls")
            call = await page.run(f"start({url}, {json.dumps(await secret(server.address))})")
            assert call.startswith("rtc_")
            kinds = "told.map(({ type }) => type)"
            await page.until(f"{kinds}.includes('output_audio_buffer.started')", 30)
            await page.until("window.loudest > 0.05")
            await page.run("session.interrupt()")
            await page.until(f"{kinds}.includes('output_audio_buffer.cleared')")
            await page.run("session.sendMessage('Hello?')")
            await page.until(
                "session.history.some(({ role, content }) =>"
                " role === 'user' && content.some(({ text }) => text === 'Hello?'))"
            )
            assert await page.run("told.filter(({ type }) => type.includes('error'))") == []
            seen = await page.run(kinds)
            for kind in ("session.created", "session.updated", "response.created"):
                assert kind in seen
            assert "response.output_audio.delta" not in seen
            await page.run("session.close()")
            await all_free(server.address)
            assert page.errors == []
