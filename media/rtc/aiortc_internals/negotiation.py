"""What an offer is answered with, and how soon."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from aioice.ice import Connection
from aiortc import RTCPeerConnection, RTCRtpCodecParameters
from aiortc.codecs import CODECS
from aiortc.rtcpeerconnection import find_common_codecs
from aiortc.sdp import MediaDescription, SessionDescription

from media.rtc.aiortc_internals import names

_PARSE = SessionDescription.parse.__code__


def common_codecs(section: MediaDescription) -> list[RTCRtpCodecParameters]:
    """What an offered section of audio or video can be answered with."""
    return find_common_codecs(CODECS[section.kind], section.rtp.codecs)


def line_at_fault(error: BaseException) -> str:
    """Where `SessionDescription.parse` was when it raised this, which may be anything; empty if it
    was elsewhere."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is _PARSE:
            line, section = frame.f_locals.get("line", ""), frame.f_locals.get("media_lines")
            return str(line if section is None or line in section else section[0])
    return ""


def limit_gathering(connection: RTCPeerConnection, timeout_s: float) -> None:
    """Has the connection wait no longer than this for STUN and TURN servers, all at once. To be
    called when the other side's description is set, and before its own is.
    """
    for transport in getattr(connection, names.ICE_TRANSPORTS):
        ice: Connection = transport._connection
        gather: Callable[..., Any] = ice.get_component_candidates  # mypy: its seconds are whole
        setattr(ice, "get_component_candidates", partial(gather, timeout=timeout_s))  # noqa: B010
