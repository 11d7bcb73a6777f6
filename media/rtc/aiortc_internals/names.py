"""Names of aiortc's private parts, as Python mangles them."""

from __future__ import annotations

from typing import Final

JITTER_BUFFER: Final = "_RTCRtpReceiver__jitter_buffer"
DECODER_QUEUE: Final = "_RTCRtpReceiver__decoder_queue"
STOP_DECODER: Final = "_RTCRtpReceiver__stop_decoder"
ICE_TRANSPORTS: Final = "_RTCPeerConnection__iceTransports"
CONNECT: Final = "_RTCPeerConnection__connect"
CODECS: Final = "_RTCRtpReceiver__codecs"
STREAMS: Final = "_RTCRtpReceiver__remote_streams"
EXTENSIONS: Final = "_RTCRtpSender__rtp_header_extensions_map"
HANDLERS: Final = ("_handle_rtp_data", "_handle_rtcp_data")
MID: Final = "_RTCRtpSender__mid"
REPORT: Final = tuple(
    f"_RTCRtpSender__{name}"
    for name in ("ntp_timestamp", "rtp_timestamp", "packet_count", "octet_count")
)
