"""A caller in a network of its own: `python -m tests.recipes.turn.caller ADDRESS KEY`.

Asks the server for its ICE servers, calls it as a page would, speaks, and prints what came of it
as JSON: how much of the voice came back, and by which kinds of candidates.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
import numpy as np
from aiortc import RTCIceServer

from tests.listening import likeness
from tests.media.rtc_client import RATE, Client, speech


async def call(address: str, key: str) -> dict[str, object]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
        async with http.get(address + "/v1/ice") as answer:
            servers = [RTCIceServer(**server) for server in (await answer.json())["iceServers"]]
        pcm = speech(3.0)
        client = Client(pcm, ice_servers=servers)
        try:
            offer = await client.offer()
            sdp = {"Content-Type": "application/sdp"}
            calls = address + "/v1/realtime/calls?duplex=1"
            async with http.post(calls, data=offer, headers=sdp) as answer:
                assert answer.status == 201, await answer.text()
                await client.answered(await answer.text())
            await client.connected()
            async with asyncio.timeout(20):
                while sum(map(len, client.heard)) < 2 * RATE * 4:
                    await asyncio.sleep(0.02)
            connection = client.pc.sctp.transport.transport._connection
            pair = connection._nominated[1]
            return {
                "likeness": likeness(np.concatenate(client.heard)[::2], pcm, RATE),
                "pair": [pair.local_candidate.type, pair.remote_candidate.type],
                "user": servers[0].username,
            }
        finally:
            await client.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(call(*sys.argv[1:]))))
