"""A model that takes images, from its callers' cameras: over a call, and in JSON."""

import asyncio
import base64
import json
from fractions import Fraction

import aiohttp
from aiortc import MediaStreamTrack

from tests.media.rtc_client import Client
from tests.pictures import encoded, flat

WORDS = "response.output_audio_transcript.delta"


class Camera(MediaStreamTrack):
    """Shows one colour at a time, ten frames a second."""

    kind = "video"

    def __init__(self):
        super().__init__()
        self.colour = "green"
        self.sent = 0

    async def recv(self):
        await asyncio.sleep(0.1)
        frame = flat(self.colour)
        frame.pts, frame.time_base = 9_000 * self.sent, Fraction(1, 90_000)
        self.sent += 1
        return frame


async def post(server, offer):
    headers = {"Content-Type": "application/sdp"}
    url = server.address + "/v1/realtime/calls?duplex=1"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=offer, headers=headers) as answer,
    ):
        assert answer.status == 201, await answer.text()
        return await answer.text()


async def until_said(client, text):
    """Waits for the model's words."""
    read = 0
    while True:
        await client.until_received(read + 1)
        event = json.loads(client.messages[read])
        read += 1
        if event["type"] == WORDS and event["delta"] == text:
            return


async def test_a_model_sees_its_callers_camera(start_server):
    camera = Camera()
    async with start_server(model="echo-video") as server:
        client = Client(video=camera)
        try:
            answer = await post(server, await client.offer())
            assert "a=recvonly" in answer.split("m=video")[1]
            await client.answered(answer)
            await until_said(client, " I see green.")
            camera.colour = "red"
            await until_said(client, " I see red.")
        finally:
            await client.close()


async def test_a_camera_that_the_model_does_not_take_is_refused_and_the_call_goes_on(start_server):
    async with start_server() as server:
        client = Client(video=Camera())
        try:
            answer = await post(server, await client.offer())
            assert "a=inactive" in answer.split("m=video")[1]
            await client.answered(answer)
            await client.connected()
            await client.until_received(1)
        finally:
            await client.close()


async def test_images_in_json_and_one_that_is_none_ends_its_own_session(start_server, call):
    async with (
        start_server(model="echo-video") as server,
        call(server) as caller,
        call(server) as other,
    ):
        created = await caller.until("session.created")
        abilities = created["session"]["capabilities"]
        assert abilities["optional_input_modalities"] == ["video"]
        for who in (caller, other):
            await who.configure()
        image = base64.b64encode(encoded("blue")).decode()
        silence = base64.b64encode(bytes(4 * 1_920)).decode()
        append = {"audio": silence, "format": "pcm_f32le"}
        await caller.send("input_audio_buffer.append", video_frames=[image], **append)
        assert (await caller.until(WORDS))["delta"] == " I see blue."
        broken = base64.b64encode(b"\xff\xd8\xff and then nothing").decode()
        await caller.send("input_audio_buffer.append", video_frames=[broken], **append)
        error = (await caller.until("error"))["error"]
        assert (error["code"], error["type"]) == ("internal_error", "server_error")
        await other.converse(3)
