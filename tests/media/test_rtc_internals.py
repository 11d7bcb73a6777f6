"""What stands in for aiortc's own parts."""

import queue
from contextlib import suppress
from fractions import Fraction

import av
import numpy as np
from aiortc.codecs.vpx import Vp8Encoder, vp8_depayload
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpParameters
from aiortc.rtcrtpreceiver import RTCRtpReceiver
from aiortc.rtcrtpsender import RTCRtpSender
from aiortc.rtp import HeaderExtensionsMap, RtpPacket
from hypothesis import given
from hypothesis import strategies as st

from media.rtc import aiortc_internals
from media.rtc.aiortc_internals import names, packets, pictures


class Video:
    """A stream of VP8 frames through the gate, each in packets of its own."""

    def __init__(self, waiting: int = 0, limit: int = 4) -> None:
        self.queue: queue.Queue[object] = queue.Queue()
        for _ in range(waiting):
            self.queue.put(None)
        self.gate = pictures._PictureGate(JitterBuffer(64, is_video=True), self.queue, limit)
        self._sequence = 0

    def send(self, data: bytes) -> tuple[bool, bytes | None]:
        """Sends a frame; gives what the gate says when the next one begins."""
        asked, frame = self.gate.add(self._packet(data))
        return asked, frame.data if frame else None

    def _packet(self, data: bytes) -> RtpPacket:
        packet = RtpPacket(sequence_number=self._sequence, timestamp=self._sequence * 3000)
        packet._data = data
        self._sequence += 1
        return packet


def vp8(*, key: bool) -> bytes:
    """The second frame of a clip, as it is given to a decoder."""
    encoder, data = Vp8Encoder(), b""
    for pts, force in ((0, True), (3000, key)):
        frame = av.VideoFrame.from_ndarray(np.full((240, 320, 3), 90, np.uint8), "rgb24")
        frame = frame.reformat(format="yuv420p")
        frame.pts, frame.time_base = pts, Fraction(1, 90000)
        payloads, _ = encoder.encode(frame, force_keyframe=force)
        data = b"".join(vp8_depayload(payload) for payload in payloads)
    return data


KEY, DELTA = vp8(key=True), vp8(key=False)


def test_frames_pass_in_order_while_the_decoder_keeps_up():
    video = Video()
    results = [video.send(data) for data in (KEY, DELTA, DELTA, KEY)]
    assert results == [(False, None), (False, KEY), (False, DELTA), (False, DELTA)]


def test_a_decoder_that_lags_gets_nothing_until_a_key_frame():
    video = Video(waiting=4)
    video.send(KEY)
    assert video.send(DELTA) == (True, None)  # and the sender is asked for a key frame
    while not video.queue.empty():
        video.queue.get()
    assert video.send(DELTA) == (False, None)
    assert video.send(KEY) == (False, None)
    assert video.send(DELTA) == (False, KEY)
    assert video.send(DELTA) == (False, DELTA)


def test_a_picture_that_claims_to_be_huge_is_not_decoded():
    huge = KEY[:6] + (16383).to_bytes(2, "little") * 2 + KEY[10:]
    video = Video()
    results = [video.send(data) for data in (huge, DELTA, KEY, DELTA)]
    assert [frame for _, frame in results] == [None, None, None, KEY]


@given(
    payload=st.binary(max_size=40),
    csrc=st.lists(st.integers(0, 2**32 - 1), max_size=3),
    padding=st.integers(0, 9),
    mid=st.none() | st.just("0"),
)
def test_a_payload_is_what_aiortc_finds(payload, csrc, padding, mid):
    extensions = HeaderExtensionsMap()
    uri = "urn:ietf:params:rtp-hdrext:sdes:mid"
    extensions.configure(
        RTCRtpParameters(headerExtensions=[RTCRtpHeaderExtensionParameters(id=1, uri=uri)])
    )
    packet = RtpPacket(payload_type=96, payload=payload)
    packet.csrc, packet.padding_size, packet.extensions.mid = csrc, padding, mid
    data = packet.serialize(extensions)
    assert packets._payload(data[0], data) == payload
    for end in range(12, len(data)):  # cut anywhere: an error, or not more than there was
        with suppress(IndexError):
            assert len(packets._payload(data[0], data[:end])) <= end - 12


def test_the_parts_that_are_replaced_are_there():
    slots = RTCRtpReceiver.__init__.__code__.co_names
    for name in (names.JITTER_BUFFER, names.DECODER_QUEUE):
        assert name in slots
    for name in (names.CODECS, names.STREAMS):
        assert name in slots
    for name in names.HANDLERS:
        assert name in RTCDtlsTransport._recv_next.__code__.co_names
    sends = RTCRtpSender.__init__.__code__.co_names
    for name in (names.EXTENSIONS, *names.REPORT):
        assert name in sends
    assert names.MID in RTCRtpSender.send.__code__.co_names
    assert hasattr(RTCRtpReceiver, names.STOP_DECODER)
    assert aiortc_internals.SUPPORTED == (1, 16)
