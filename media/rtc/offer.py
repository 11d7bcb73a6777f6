"""A caller's SDP offer: what we need of it, checked before anything is opened for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aiortc import RTCRtpCodecParameters
from aiortc.sdp import MediaDescription, SessionDescription

from media.rtc.aiortc_internals import negotiation
from media.rtc.errors import BadOffer

MAX_OFFER_BYTES: Final = 64 * 1024
MAX_SECTIONS: Final = 8
MAX_QUOTED: Final = 100
"""So many characters of a line are quoted in an error."""

DIRECTIONS: Final = ("sendrecv", "sendonly", "recvonly", "inactive")

CODECS: Final = {"audio": "audio/opus", "video": "video/vp8"}
"""What is spoken here."""


@dataclass(frozen=True, slots=True)
class Section:
    """A media section that can be answered."""

    kind: str
    """"audio", "video" or "application"."""
    spoken: bool
    """Whether our codec is among those offered; media of another is answered inactive."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A valid offer."""

    sdp: str
    """As it is given to aiortc: without the sections that are rejected, with each direction said;
    and see `_without_futile_candidates`.
    """
    sections: tuple[Section, ...]
    """Those of `sdp`."""
    rejected: tuple[tuple[int, str], ...]
    """Sections whose codecs nobody knows here, and all of data but the first; each as it is
    answered, with its place.
    """
    takes_fec: bool
    """Whether the caller decodes Opus's forward error correction (RFC 7587, section 6.1)."""

    def answered(self, sdp: str) -> str:
        """The whole answer, from aiortc's."""
        head, *sections = _split(sdp)
        for place, section in self.rejected:
            sections.insert(place, section)
        return head + "".join(sections)


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
        line = negotiation.line_at_fault(error)
        raise BadOffer("sdp", f"can't be parsed at {line[:MAX_QUOTED]!r}") from error
    sections = description.media
    if len(sections) > MAX_SECTIONS:
        raise BadOffer("m", f"{len(sections)} media sections are more than {MAX_SECTIONS}")
    for section in sections:
        _check_section(section)
    names = [section.rtp.muxId for section in sections]
    if len(set(names)) != len(names):
        raise BadOffer("mid", "is not unique to each media section")
    if not any(section.kind == "audio" for section in sections):
        raise BadOffer("audio", "the offer has no audio section")
    opus = next((ours for s in sections if s.kind == "audio" and (ours := _spoken(s))), None)
    if opus is None:
        raise BadOffer("audio", "Opus is not among the codecs offered")
    _check_bundle(description, names)
    head, *texts = _split(cleaned)
    data = next((s for s in sections if s.kind == "application"), None)
    known = [
        place
        for place, section in enumerate(sections)
        if (section is data if section.kind == "application" else _known(section))
    ]
    rejected = [place for place in range(len(sections)) if place not in known]
    direction = _direction(head)
    for place in known:
        if sections[place].direction is None:
            texts[place] += f"a={direction}\r\n"
    head = _ungrouped(head, {sections[place].rtp.muxId for place in rejected})
    return Offer(
        sdp=head + "".join(texts[place] for place in known),
        sections=tuple(
            Section(sections[place].kind, _spoken(sections[place]) is not None) for place in known
        ),
        rejected=tuple((place, _rejection(texts[place])) for place in rejected),
        takes_fec=str(opus.parameters.get("useinbandfec")) == "1",
    )


def _known(section: MediaDescription) -> bool:
    """Whether there is a codec that a section of media can be answered with."""
    return bool(negotiation.common_codecs(section))


def _spoken(section: MediaDescription) -> RTCRtpCodecParameters | None:
    """Our codec as a section offers it."""
    if section.kind not in CODECS:
        return None
    common = {(c.mimeType.lower(), c.clockRate) for c in negotiation.common_codecs(section)}
    for codec in section.rtp.codecs:
        name = codec.mimeType.lower()
        if name == CODECS[section.kind] and (name, codec.clockRate) in common:
            return codec
    return None


def _split(sdp: str) -> list[str]:
    """What comes before the media sections, and each of them."""
    return re.split(r"^(?=m=)", sdp, flags=re.MULTILINE)


def _direction(head: str) -> str:
    """That of sections which don't say theirs (RFC 8866, section 6.7)."""
    said = [line[2:] for line in head.splitlines() if line.startswith("a=")]
    return next((word for word in said if word in DIRECTIONS), DIRECTIONS[0])


def _ungrouped(head: str, mids: set[str]) -> str:
    """What comes before the media sections, with some of them in no group."""
    lines = head.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.startswith("a=group:"):
            lines[at] = " ".join(word for word in line.split() if word not in mids) + "\r\n"
    return "".join(lines)


def _rejection(section: str) -> str:
    """The answer that rejects a section: port 0, in no group (RFC 3264, 6; RFC 9429, 5.3.1)."""
    kind, _, rest = section.splitlines()[0].split(" ", 2)
    mid = next(line for line in section.splitlines() if line.startswith("a=mid:"))
    return "\r\n".join((f"{kind} 0 {rest}", "c=IN IP4 0.0.0.0", mid, "a=inactive", ""))


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
    if name == "application" and section.profile != "DTLS/SCTP":
        if section.sctp_port is None:
            raise BadOffer("sctp-port", f"is missing in the {name} section")
        if not 0 < section.sctp_port < 1 << 16:
            raise BadOffer("sctp-port", f"{section.sctp_port} is no port")
    for codec in section.rtp.codecs:
        if codec.payloadType is not None and not 0 <= codec.payloadType < 128:
            raise BadOffer("rtpmap", f"{codec.payloadType} is no payload type")
    for extension in section.rtp.headerExtensions:
        if not 0 < extension.id < 256:
            raise BadOffer("extmap", f"{extension.id} is no number of a header extension")


def _check_bundle(description: SessionDescription, names: list[str]) -> None:
    for group in description.group:
        if group.semantic != "BUNDLE":
            continue
        for name in group.items:
            if name not in names:
                raise BadOffer("group", f"BUNDLE names {name!r}, which is the mid of no section")
        if len(set(group.items)) != len(group.items):
            raise BadOffer("group", "BUNDLE names a section twice")


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
