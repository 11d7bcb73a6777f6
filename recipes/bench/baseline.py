"""The least a server can do: a bare aiohttp WebSocket loop that gives each append back.

It decodes and encodes the same JSON and base64 with the same library as the real server, without
compression and on uvloop, and does nothing else: no sessions, no checks, no samples touched. Its
CPU time is the yardstick for `recipes.bench.sockets`.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
import uvloop
from aiohttp import WSMsgType, web


class _Append(msgspec.Struct, tag="input_audio_buffer.append", gc=False):
    audio: bytes


class _Update(msgspec.Struct, tag="session.update"):
    session: dict[str, object]


class _Close(msgspec.Struct, tag="session.close"):
    pass


_messages = msgspec.json.Decoder(_Append | _Update | _Close)
_encoder = msgspec.json.Encoder()


async def _socket(request: web.Request) -> web.StreamResponse:
    socket: web.WebSocketResponse[bool] = web.WebSocketResponse(compress=False, decode_text=False)
    await socket.prepare(request)
    name = f"resp_{id(socket):x}"
    index = 0
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        match _messages.decode(message.data):
            case _Append(audio=audio):
                await socket.send_frame(_delta(name, index, audio), WSMsgType.TEXT)
                index += 1
            case _Update(session=session):
                for kind in ("session.created", "session.updated"):
                    await _say(socket, kind, session=session)
            case _Close():
                await _say(socket, "session.closed", reason="client_close")
                break
    await socket.close()
    return socket


def _delta(name: str, index: int, audio: bytes) -> bytes:
    """As many fields as the real server's, so that the JSON is the same work."""
    return _encoder.encode(
        {
            "type": "response.output_audio.delta",
            "event_id": f"event_{name}_{index}",
            "server_event_seq": index,
            "response_id": name,
            "item_id": f"item_{name}",
            "output_index": 0,
            "content_index": 0,
            "delta": audio,
            "format": "pcm16",
            "sample_rate_hz": 24000,
            "metadata": {
                "audio_duration_ms": 80.0 * (index + 1),
                "server_event_seq": index,
                "frame_index": index,
                "epoch": 0,
            },
        }
    )


async def _say(socket: web.WebSocketResponse[bool], kind: str, **fields: object) -> None:
    message = _encoder.encode({"type": kind, "session_id": "bare", **fields})
    await socket.send_frame(message, WSMsgType.TEXT)


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "pid": os.getpid()})


async def _serve() -> None:
    app = web.Application()
    app.router.add_get("/v1/realtime", _socket)
    app.router.add_get("/health", _health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"ws://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
