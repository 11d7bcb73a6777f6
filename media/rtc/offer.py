"""A caller's SDP offer: what we need of it, checked before anything is opened for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiortc.sdp import MediaDescription, SessionDescription

from media.rtc.errors import BadOffer

MAX_OFFER_BYTES: Final = 64 * 1024
MAX_SECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """A valid offer."""

    sdp: str
    """As it is given to aiortc; see `_without_futile_candidates`."""
    kinds: tuple[str, ...]
    """Kind of each media section: "audio", "video" or "application"."""
    takes_fec: bool
    """Whether the caller decodes Opus's forward error correction (RFC 7587, section 6.1)."""


def parse_offer(sdp: str) -> Offer:
    """Checks an offer. Raises BadOffer, which names the part that is wrong."""
    if len(sdp) > MAX_OFFER_BYTES:
        raise BadOffer("sdp", f"{len(sdp)} bytes are more than {MAX_OFFER_BYTES}")
    if not sdp.lstrip().startswith("v=0"):
        raise BadOffer("sdp", "does not begin with v=0")
    cleaned = _without_futile_candidates(sdp.lstrip())
    try:
        description = SessionDescription.parse(cleaned)
    except Exception as error:  # the parser asserts, looks up and unpacks: any line may be at fault
        raise BadOffer("sdp", f"can't be parsed: {str(error) or type(error).__name__}") from error
    sections = description.media
    if len(sections) > MAX_SECTIONS:
        raise BadOffer("m", f"{len(sections)} media sections are more than {MAX_SECTIONS}")
    for section in sections:
        _check_section(section)
    names = [section.rtp.muxId for section in sections]
    if len(set(names)) != len(names):
        raise BadOffer("mid", "is not unique to each media section")
    audio = [section for section in sections if section.kind == "audio"]
    if not audio:
        raise BadOffer("audio", "the offer has no audio section")
    opus = [codec for codec in audio[0].rtp.codecs if codec.mimeType.lower() == "audio/opus"]
    if not opus:
        raise BadOffer("audio", "Opus is not among the codecs offered")
    return Offer(
        sdp=cleaned,
        kinds=tuple(section.kind for section in sections),
        takes_fec=str(opus[0].parameters.get("useinbandfec")) == "1",
    )


def _check_section(section: MediaDescription) -> None:
    name = section.kind
    if name not in ("audio", "video", "application"):
        raise BadOffer("m", f"media of kind {name!r} is not spoken here")
    if not section.rtp.muxId:
        raise BadOffer("mid", f"is missing in the {name} section")
    if not (section.ice and section.ice.usernameFragment and section.ice.password):
        raise BadOffer("ice-ufrag, ice-pwd", f"are missing in the {name} section")
    if section.dtls is None:
        raise BadOffer("setup", f"is missing in the {name} section")
    if not section.dtls.fingerprints:
        raise BadOffer("fingerprint", f"is missing in the {name} section")
    if name != "application" and not section.rtcp_mux:
        raise BadOffer("rtcp-mux", f"is missing in the {name} section")


def _without_futile_candidates(sdp: str) -> str:
    """The offer without mDNS candidates and without an end of candidates.

    A browser hides its addresses behind names that only multicast DNS resolves, which may take a
    second and fail. It needs no such name: the checks it sends tell its address. For the same
    reason the offer's candidates are never all there can be.
    """
    return "".join(
        line + "\r\n"
        for line in sdp.splitlines()
        if line != "a=end-of-candidates"
        and not (line.startswith("a=candidate:") and ".local " in line)
    )
