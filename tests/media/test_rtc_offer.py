"""Offers that can't be answered, and the queue of a peer's events."""

import asyncio
import gc
import logging
import os
import re
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from media.rtc.errors import BadOffer
from media.rtc.events import (
    AudioFrame,
    ChannelOpened,
    Closed,
    CloseReason,
    ImageFormat,
    MessageReceived,
)
from media.rtc.mailbox import MAX_FRAMES, MAX_MESSAGE_BYTES, MAX_MESSAGES, Mailbox
from media.rtc.offer import MAX_OFFER_BYTES, Section, parse_offer
from media.rtc.peer import Peer
from media.rtc.settings import PeerSettings

FINGERPRINT = ":".join(f"{byte:02X}" for byte in range(32))
TRANSPORT = f"""a=ice-ufrag:abcd
a=ice-pwd:0123456789012345678901
a=fingerprint:sha-256 {FINGERPRINT}
a=setup:actpass
"""
AUDIO = f"""m=audio 9 UDP/TLS/RTP/SAVPF 111 0
c=IN IP4 0.0.0.0
a=mid:0
a=rtcp-mux
a=sendrecv
{TRANSPORT}a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;useinbandfec=1
a=rtpmap:0 PCMU/8000
"""
VIDEO = f"""m=video 9 UDP/TLS/RTP/SAVPF 98
c=IN IP4 0.0.0.0
a=mid:1
a=rtcp-mux
a=sendrecv
{TRANSPORT}a=rtpmap:98 VP9/90000
"""
DATA = f"""m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=mid:2
{TRANSPORT}a=sctp-port:5000
a=max-message-size:262144
"""
HEAD = "v=0\no=- 1 2 IN IP4 127.0.0.1\ns=-\nt=0 0\na=group:BUNDLE 0\n"
OFFER = HEAD + AUDIO
RAW = re.compile(r"object has no|Error|unpack|invalid literal|StopIteration")
"""What exceptions of a parser say."""
BROWSER = (
    HEAD.replace("BUNDLE 0", "BUNDLE 0 1 2")
    + "a=extmap-allow-mixed\na=msid-semantic: WMS stream\n"
    + AUDIO.replace("a=sendrecv\n", "a=sendrecv\na=msid:stream track\na=rtcp:9 IN IP4 0.0.0.0\n")
    + "a=candidate:1 1 udp 2122260223 127.0.0.1 51234 typ host generation 0\n"
    + "a=ice-options:trickle\na=rtcp-fb:111 transport-cc\na=ssrc:1234 cname:x\n"
    + "a=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid\n"
    + VIDEO.replace(" 98", " 96 97 98")
    + "a=rtpmap:96 VP8/90000\na=rtcp-fb:96 nack pli\na=rtpmap:97 rtx/90000\na=fmtp:97 apt=96\n"
    + "a=ssrc-group:FID 11 12\na=ssrc:11 cname:x\na=ssrc:12 cname:x\n"
    + DATA
)


def test_what_an_offer_says():
    offer = parse_offer(OFFER)
    assert offer.sections == (Section("audio", spoken=True),)
    assert not offer.rejected
    assert offer.takes_fec
    assert not parse_offer(OFFER.replace(";useinbandfec=1", "")).takes_fec


def test_names_only_multicast_dns_resolves_are_not_waited_for():
    hidden = "a=candidate:1 1 udp 2113937151 1f4712db.local 51234 typ host\na=end-of-candidates\n"
    plain = "a=candidate:2 1 udp 2113937151 10.0.0.1 51234 typ host\n"
    sdp = parse_offer(OFFER + hidden + plain).sdp
    assert ".local" not in sdp
    assert "end-of-candidates" not in sdp
    assert "10.0.0.1" in sdp


@pytest.mark.parametrize(
    ("sdp", "field"),
    [
        ("", "sdp"),
        ("hello", "sdp"),
        ("v=0", "audio"),
        ("v=0\nm=audio\n", "sdp"),
        ("v=0\n" + "a=x\n" * MAX_OFFER_BYTES, "sdp"),
        (HEAD + VIDEO, "audio"),
        (OFFER.replace("opus", "speex"), "audio"),
        (OFFER.replace("a=mid:0\n", ""), "mid"),
        (OFFER + AUDIO, "mid"),
        (OFFER.replace("a=ice-pwd:0123456789012345678901\n", ""), "ice-ufrag, ice-pwd"),
        (OFFER.replace("a=setup:actpass\n", ""), "setup"),
        (OFFER.replace("a=fingerprint", "a=toeprint"), "fingerprint"),
        (OFFER.replace("a=rtcp-mux\n", ""), "rtcp-mux"),
        (OFFER.replace("a=setup:actpass", "a=setup:sideways"), "sdp"),
        (OFFER.replace("BUNDLE 0", "BUNDLE 7 0"), "group"),
        (OFFER.replace("BUNDLE 0", "BUNDLE 0 0"), "group"),
        (OFFER.replace("111", "200"), "rtpmap"),
        (OFFER + "a=extmap:0 urn:ietf:params:rtp-hdrext:sdes:mid\n", "extmap"),
        (OFFER + DATA.replace("a=sctp-port:5000\n", ""), "sctp-port"),
        (OFFER + DATA.replace("5000", "70000"), "sctp-port"),
        (OFFER + DATA.replace("UDP/DTLS", "DTLS"), "sdp"),
        (OFFER + "m=text 9 RTP/AVP 100\n" + TRANSPORT + "a=mid:1\n", "m"),
        (OFFER + "".join(VIDEO.replace("mid:1", f"mid:{k}") for k in range(1, 9)), "m"),
    ],
)
async def test_a_bad_offer_names_what_is_wrong(sdp: str, field: str):
    with pytest.raises(BadOffer) as caught:
        await Peer.accept(sdp)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert not str(caught.value).endswith(": "), "says nothing after the field"
    assert not RAW.search(str(caught.value))


@pytest.mark.parametrize(
    "line",
    [
        "a=setup:sideways",
        "a=candidate:1 1 udp",
        "a=ssrc",
        "a=fmtp:5 x=1",
        "m=audio 9 UDP/TLS/RTP/SAVPF x",
        "m=audio",
    ],
)
def test_a_line_that_can_t_be_parsed_is_quoted(line: str):
    with pytest.raises(BadOffer, match=re.escape(repr(line))):
        parse_offer(OFFER + line + "\na=mid:1\n")


async def test_a_browser_s_offer_is_answered_with_opus_alone():
    codecs = {63: "red/48000/2", 9: "G722/8000", 8: "PCMA/8000", 13: "CN/8000"}
    codecs |= {110: "telephone-event/48000", 126: "telephone-event/8000"}
    listed = "m=audio 9 UDP/TLS/RTP/SAVPF 9 63 111 0 8 13 110 126"
    audio = AUDIO.replace("m=audio 9 UDP/TLS/RTP/SAVPF 111 0", listed)
    audio += "".join(f"a=rtpmap:{number} {name}\n" for number, name in codecs.items())
    audio += "a=fmtp:63 111/111\na=rtcp-fb:111 transport-cc\na=ssrc:1234 cname:x\n"
    audio += "a=extmap:14 urn:ietf:params:rtp-hdrext:ssrc-audio-level\na=extmap-allow-mixed\n"
    data = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\nc=IN IP4 0.0.0.0\na=mid:1\n"
    data += TRANSPORT + "a=sctp-port:5000\na=max-message-size:262144\n"
    peer = await Peer.accept(HEAD.replace("BUNDLE 0", "BUNDLE 0 1") + audio + data)
    section = peer.answer.split("m=audio")[1].split("m=")[0]
    assert section.splitlines()[0].endswith(" UDP/TLS/RTP/SAVPF 111")
    assert "a=sendrecv" in section
    assert "m=application" in peer.answer
    await peer.close()


@pytest.mark.parametrize("pictures", [None, ImageFormat.RGB])
@pytest.mark.parametrize("first", [True, False])
async def test_media_of_unknown_codecs_is_rejected_and_the_rest_is_answered(pictures, first):
    video = VIDEO.replace("mid:1", "mid:v")
    speex = AUDIO.replace("mid:0", "mid:s").replace("opus", "speex").replace(" 111 0", " 111")
    head = HEAD.replace("BUNDLE 0", "BUNDLE v 0 s" if first else "BUNDLE 0 s v")
    sdp = head + (video + AUDIO + speex if first else AUDIO + speex + video)
    peer = await Peer.accept(
        sdp.replace("a=rtpmap:0 PCMU/8000\n", ""), PeerSettings(pictures=pictures)
    )
    sections = {mid(text): text for text in peer.answer.split("m=")[1:]}
    assert list(sections) == (["v", "0", "s"] if first else ["0", "s", "v"])
    assert sections["v"].startswith("video 0 UDP/TLS/RTP/SAVPF 98\r\n")
    assert sections["s"].startswith("audio 0 UDP/TLS/RTP/SAVPF 111\r\n")
    assert "a=sendrecv" in sections["0"]
    assert "a=group:BUNDLE 0\r\n" in peer.answer
    await peer.close()


def mid(section):
    return re.search(r"^a=mid:(.*?)\r?$", section, re.MULTILINE)[1]


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_offer_is_parsed_or_refused(data):
    lines = OFFER.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[at])))
    junk = data.draw(st.text(max_size=20))
    lines[at] = lines[at][:cut] + junk
    try:
        offer = parse_offer("\n".join(lines))
    except BadOffer as error:
        assert error.field
    else:
        assert Section("audio", spoken=True) in offer.sections


@pytest.mark.parametrize(
    ("head", "direction", "answered"),
    [
        (HEAD, "", "sendrecv"),
        (HEAD + "a=sendonly\n", "", "recvonly"),
        (HEAD + "a=inactive\n", "a=sendrecv\n", "sendrecv"),
    ],
)
async def test_a_section_without_a_direction_has_the_session_s(head, direction, answered):
    peer = await Peer.accept(head + AUDIO.replace("a=sendrecv\n", direction))
    await peer.close()
    assert f"a={answered}\r\n" in peer.answer


async def test_of_many_data_sections_the_first_is_answered_and_the_rest_are_rejected():
    data = [DATA.replace("mid:2", f"mid:d{k}") for k in range(7)]
    peer = await Peer.accept(HEAD.replace("BUNDLE 0", "BUNDLE 0 d0 d1") + AUDIO + "".join(data))
    await peer.close()
    sections = {mid(text): text for text in peer.answer.split("m=")[1:]}
    assert list(sections) == ["0", *(f"d{k}" for k in range(7))]
    ports = [text.split()[1] for text in sections.values()]
    assert [port == "0" for port in ports] == [False] * 2 + [True] * 6
    assert "a=group:BUNDLE 0 d0\r\n" in peer.answer


def mutated(lines: list[str], random: Random) -> str:
    """An offer with one to three faults in its lines or in their words."""
    lines = list(lines)
    for _ in range(random.randint(1, 3)):
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        words = re.split(r"([ :=/;])", lines[at])
        word, another = random.randrange(len(words)), random.randrange(len(words))
        match random.randrange(8):
            case 0:
                del lines[at]
                continue
            case 1:
                lines.insert(other, lines[at])
                continue
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
                continue
            case 3:
                lines[at] = lines[at][: random.randint(0, len(lines[at]))]
                continue
            case 4:
                del words[word]
            case 5:
                words.insert(another, words[word])
            case 6:
                words[word], words[another] = words[another], words[word]
            case 7:
                words[word] = words[word][: random.randint(0, len(words[word]))]
        lines[at] = "".join(words)
    return "\r\n".join(lines) + "\r\n"


async def test_a_mutated_offer_is_answered_or_refused_and_leaves_nothing(caplog):
    random = Random(20)
    before, descriptors = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    outcomes: Counter[str] = Counter()
    for _ in range(250):
        sdp = mutated(BROWSER.splitlines(), random)
        try:
            peer = await Peer.accept(sdp, PeerSettings(pictures=ImageFormat.RGB))
        except BadOffer as error:
            outcomes["refused"] += 1
            assert not RAW.search(str(error)), sdp
        except Exception as error:
            raise AssertionError(sdp) from error
        else:
            outcomes["answered"] += 1
            await peer.close()
    assert min(outcomes["answered"], outcomes["refused"]) > 50, outcomes
    async with asyncio.timeout(5):
        while others := asyncio.all_tasks() - before:
            await asyncio.wait(others)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    gc.collect()  # an error that nobody has fetched is told of now
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def frame(k: int) -> AudioFrame:
    return AudioFrame(k, np.zeros(0, np.float32))


async def test_unread_frames_drop_their_oldest_and_messages_stay():
    mailbox = Mailbox()
    mailbox.put(MessageReceived("first"))
    for k in range(MAX_FRAMES + 3):
        assert mailbox.put(frame(k))
    mailbox.put(Closed(CloseReason.LOCAL))
    events = []
    while (event := await mailbox.get()) is not None:
        events.append(event)
    assert events[0] == MessageReceived("first")
    assert [event.index for event in events[1:-1]] == list(range(3, MAX_FRAMES + 3))
    assert events[-1] == Closed(CloseReason.LOCAL)
    assert mailbox.dropped_frames == 3
    assert await mailbox.get() is None


async def test_messages_have_a_bound_in_number_and_in_bytes():
    mailbox = Mailbox()
    for _ in range(MAX_MESSAGES):
        assert mailbox.put(MessageReceived("x"))
    assert not mailbox.put(MessageReceived("x"))
    await mailbox.get()
    assert mailbox.put(MessageReceived("x"))
    assert not mailbox.put(ChannelOpened())
    mailbox = Mailbox()
    assert mailbox.put(MessageReceived(bytes(MAX_MESSAGE_BYTES)))
    assert not mailbox.put(MessageReceived(b"x"))
