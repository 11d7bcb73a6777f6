"""Images of one colour, for models that see."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 230), "grey": (128,) * 3}


def flat(colour: str, width: int = 64, height: int = 48) -> av.VideoFrame:
    """A frame that is all of one colour."""
    pixels = np.full((height, width, 3), COLOURS[colour], np.uint8)
    return av.VideoFrame.from_ndarray(pixels, "rgb24")


def encoded(colour: str, codec: str = "mjpeg") -> bytes:
    """The same as a file: JPEG, or PNG with codec "png"."""
    encoder = av.CodecContext.create(codec, "w")
    frame = flat(colour).reformat(format="yuvj420p" if codec == "mjpeg" else "rgb24")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, frame.format.name
    encoder.time_base = Fraction(1, 25)
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
