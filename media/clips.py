"""Short recordings in memory, from people nobody knows: any format that FFmpeg reads."""

from __future__ import annotations

import io

import av
import numpy as np

from media.files import mono_chunks
from media.formats import BadAudio, Pcm
from media.resample import resample_offline

_RATES = range(1_000, 768_001)


def read_clip(data: bytes, rate: int, *, max_s: float) -> Pcm:
    """The first audio stream of a file's bytes as mono samples [n] at `rate` Hz, n > 0.

    Takes as long as decoding takes, so not for an event loop; decodes no more than `max_s`
    seconds. Raises BadAudio for what is no audio, empty, longer, or not finite.
    """
    try:
        # A playlist would name other files, and FFmpeg open them: no protocol, no other file.
        with av.open(io.BytesIO(data), "r", container_options={"protocol_whitelist": ""}) as clip:
            if not clip.streams.audio:
                raise BadAudio("no audio in it")
            source_rate = clip.streams.audio[0].rate
            if source_rate not in _RATES:
                raise BadAudio(f"its sample rate is {source_rate} Hz")
            chunks, samples = [], 0
            for chunk in mono_chunks(clip):
                chunks.append(chunk)
                samples += len(chunk)
                if samples > max_s * source_rate:
                    raise BadAudio(f"longer than {max_s:g} s")
    except av.FFmpegError as error:
        raise BadAudio(f"can't be read as audio ({error.strerror})") from error
    if not samples:
        raise BadAudio("no audio in it")
    pcm = resample_offline(np.concatenate(chunks), source_rate, rate)
    if not np.isfinite(pcm).all():
        raise BadAudio("holds NaN or infinity")
    return pcm
