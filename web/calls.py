"""WebRTC behind HTTP: an offer is posted, the answer comes back, and the call has an address."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import Final

from aiohttp import BodyPartReader, hdrs, web

from duplex.commands import UpdateSession
from duplex.config import ServeConfig
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.requests import carry_out
from duplex.session import Mode
from duplex.wire.session_reader import read_session
from media.rtc.errors import BadOffer
from media.rtc.events import ImageFormat
from media.rtc.offer import MAX_OFFER_BYTES, parse_offer
from media.rtc.peer import Peer
from media.rtc.settings import PeerSettings
from web.bodies import decode_json, in_time, read_body, read_part
from web.call import Call, with_our_clock
from web.context import CLIENT, CONTEXT
from web.errors import ApiError, refused
from web.ice import ice_server
from web.opening import create_session, session_id_of, wire_for
from web.workers.siblings import no_call

logger = logging.getLogger(__name__)

SDP: Final = "application/sdp"

MAX_SESSION_BYTES: Final = 16 << 20
"""Of the settings that come with an offer: a recording of a voice may be among them."""


class Calls:
    """The calls of a server, each with the client that made it."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, call_id: str, client: str, call: Call) -> None:
        """Carries a call until it ends."""
        self._calls[call_id] = client, call
        task = asyncio.create_task(self._run(call_id, call), name=f"call-{call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def find(self, call_id: str, client: str) -> Call:
        """A client's call. Raises ApiError 404 if it has ended, never was, or is another's."""
        owner, call = self._calls.get(call_id, (None, None))
        if call is None or owner != client:
            raise no_call(call_id)
        return call

    async def ended(self) -> None:
        """Waits until all calls are over; whoever waits has ended their sessions."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _run(self, call_id: str, call: Call) -> None:
        try:
            await call.run()
        except Exception:
            logger.exception("call %s failed", call_id)
        finally:
            del self._calls[call_id]


CALLS = web.AppKey("calls", Calls)


async def create_call(request: web.Request) -> web.Response:
    """`POST /v1/realtime/calls`: answers an offer, once the session has its slot."""
    client = request[CLIENT]
    mode = Mode.DUPLEX if request.query.get("duplex") == "1" else Mode.TURNS
    offer, asked = await _read_offer(request)
    try:
        with ExitStack() as place:
            place.enter_context(await request.app[CONTEXT].desk.hold(client))
            call, answer = await _open(request, mode, offer, asked, place)
    except BadOffer as error:
        message = f"This offer can't be answered: {error}."
        raise ApiError(400, "invalid_sdp", message, param="sdp") from error
    except SessionError as error:
        raise refused(error) from error
    siblings = request.app[CONTEXT].siblings
    call_id = new_id("rtc" if siblings is None else f"rtc_{siblings.home}")
    request.app[CALLS].start(call_id, client, call)
    return web.Response(
        status=201,
        body=answer.encode(),
        content_type=SDP,
        headers={hdrs.LOCATION: f"/v1/realtime/calls/{call_id}"},
    )


async def _open(
    request: web.Request, mode: Mode, offer: str, asked: dict[str, object], place: ExitStack
) -> tuple[Call, str]:
    """The call, with a slot and a peer, and the answer; nothing is left open if it raises."""
    context = request.app[CONTEXT]
    parse_offer(offer)  # before a slot is taken for it
    patch, substitutions = read_session(asked, context.runtime.spec)
    session_id = await session_id_of(request)
    wire = wire_for(request, session_id, mode)
    session = create_session(request, session_id, mode, paced=True)
    try:
        await carry_out(
            session, with_our_clock(UpdateSession(patch=patch, substitutions=substitutions))
        )
        settings = peer_settings(context.config, sees=context.runtime.spec.video)
        peer = await Peer.accept(offer, settings, context.runtime.clock)
    except BaseException:
        await session.close("refused")
        raise
    return Call(context, peer, session, wire, place.pop_all()), peer.answer


async def hang_up(request: web.Request) -> web.Response:
    """`POST /v1/realtime/calls/{call_id}/hangup`: ends a call; answers when it is over."""
    call_id, client = request.match_info["call_id"], request[CLIENT]
    siblings = request.app[CONTEXT].siblings
    if siblings and (home := siblings.home_of_call(call_id)):
        await siblings.hang_up(home, call_id, client)
    else:
        await request.app[CALLS].find(call_id, client).hang_up()
    return web.Response()


def peer_settings(config: ServeConfig, *, sees: bool) -> PeerSettings:
    """What a deployment decides about its callers' peers, and whether its model takes images."""
    return PeerSettings(
        ice_servers=tuple(map(ice_server, config.ice_servers)),
        pictures=ImageFormat.JPEG if sees else None,
    )


async def _read_offer(request: web.Request) -> tuple[str, dict[str, object]]:
    """The SDP and the session object. Raises ApiError 400, 408, 413 or 415."""
    if request.content_type == SDP:
        return _text(await read_body(request, MAX_OFFER_BYTES)), {}
    if request.content_type != "multipart/form-data":
        raise ApiError(
            415,
            "unsupported_media_type",
            f"Send the offer as {SDP}, or as multipart/form-data with parts sdp and session.",
            param="Content-Type",
        )
    offer: str | None = None
    session: dict[str, object] = {}
    try:
        async with in_time():
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader):
                    raise ApiError(400, "invalid_multipart", "A part is multipart itself.")
                if part.name == "sdp":
                    offer = _text(await read_part(part, MAX_OFFER_BYTES))
                elif part.name == "session":
                    body = await read_part(part, MAX_SESSION_BYTES)
                    session = decode_json(body, dict[str, object], "session")
    except (ValueError, AssertionError) as error:  # aiohttp's parser has no errors of its own
        raise ApiError(400, "invalid_multipart", f"The body can't be read: {error}.") from error
    if offer is None:
        raise ApiError(400, "missing_parameter", "There is no part sdp.", param="sdp")
    return offer, session


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_sdp", "The offer is not UTF-8.", param="sdp") from error
