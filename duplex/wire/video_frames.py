"""Reads the images of an append: base64 of JPEG or PNG files."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

from duplex.errors import SessionError
from duplex.wire.fields import refuse
from engine.api import EngineSpec

MAX_FRAMES = 2
"""Images of one append."""
MAX_BYTES = 4 << 20
"""Of one image's file."""

_KINDS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
"""What JPEG (ITU-T T.81, B.1.1.3) and PNG (W3C, 5.2) files begin with."""


def read_video(frames: Sequence[str], spec: EngineSpec) -> tuple[bytes, ...]:
    """The files, for a model that takes them.

    Raises SessionError for images that are none, are too many or too large, and for any image if
    the model takes none.
    """
    if len(frames) > MAX_FRAMES:
        refuse("video_frames", f"At most {MAX_FRAMES} video frames an append.")
    files = tuple(_file(f"video_frames[{place}]", text) for place, text in enumerate(frames))
    if files and not spec.video:
        raise SessionError(
            "unsupported_modality", "The model takes no video.", param="video_frames"
        )
    return files


def _file(path: str, text: str) -> bytes:
    if len(text) > -(-MAX_BYTES // 3) * 4:
        refuse(path, f"{path} is larger than {MAX_BYTES >> 20} MiB.")
    try:
        file = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise SessionError("invalid_value", f"{path} is no base64: {error}.", param=path) from error
    if not file.startswith(_KINDS):
        refuse(path, f"{path} is neither JPEG nor PNG.")
    return file
