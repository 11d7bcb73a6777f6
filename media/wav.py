"""The WAV header: RIFF with 16-bit integer or 32-bit float samples, mono.

Layout: Microsoft's "Multimedia Programming Interface and Data Specifications" 1.0, and for float
samples its 1994 supplement (tag 3, an extension size and a `fact` chunk).
"""

from __future__ import annotations

import struct
from enum import StrEnum

_MAX_SIZE = 0xFFFFFFFF


class Subtype(StrEnum):
    """How a WAV stores a sample."""

    PCM16 = "pcm16"
    FLOAT = "float"

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return 2 if self is Subtype.PCM16 else 4


def wav_header(rate: int, subtype: Subtype, samples: int) -> bytes:
    """The bytes before the first sample of a mono WAV with this many samples.

    Its length depends on the subtype only, so a header can be rewritten in place. A size that
    32 bits can't hold is written as the largest one, which readers take as "to the end".
    """
    width = subtype.sample_bytes
    if subtype is Subtype.PCM16:
        head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * width, width, 16)
    else:
        head = struct.pack("<4sIHHIIHHH", b"fmt ", 18, 3, 1, rate, rate * width, width, 32, 0)
        head += struct.pack("<4sII", b"fact", 4, min(samples, _MAX_SIZE))
    size = samples * width
    riff = struct.pack("<4sI4s", b"RIFF", min(4 + len(head) + 8 + size, _MAX_SIZE), b"WAVE")
    return riff + head + struct.pack("<4sI", b"data", min(size, _MAX_SIZE))
