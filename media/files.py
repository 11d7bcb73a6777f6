"""Audio files: any that FFmpeg reads in, WAV out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import numpy as np
from av.container import InputContainer

from media.formats import Pcm, to_int16
from media.resample import resample_offline
from media.wav import Subtype, wav_header


class AudioFileError(Exception):
    """A file that can't be read as audio, or not written. The message names it."""


def read_audio(path: str | Path, rate: int) -> Pcm:
    """The first audio stream of a file (WAV, FLAC, OGG, MP3 ...) as mono samples at `rate` Hz.

    Channels are averaged. At the file's own rate a mono file's samples come back exactly as they
    were stored. Raises AudioFileError if there is no such file, no audio in it or none that can
    be decoded.
    """
    try:
        # Opened here, since FFmpeg would take some names for URLs or devices.
        with Path(path).open("rb") as file, av.open(file, "r") as container:
            if not container.streams.audio:
                raise AudioFileError(f"{path}: no audio in it")
            source_rate = container.streams.audio[0].rate
            chunks = list(mono_chunks(container))
    except av.FFmpegError as error:
        raise AudioFileError(f"{path}: can't be read as audio ({error.strerror})") from error
    except OSError as error:
        raise AudioFileError(f"{path}: {error.strerror}") from error
    if not chunks:
        return np.zeros(0, np.float32)
    return resample_offline(np.concatenate(chunks), source_rate, rate)


def mono_chunks(container: InputContainer) -> Iterator[Pcm]:
    """The first audio stream's samples as they are decoded, channels averaged, at its own rate."""
    to_float = av.AudioResampler(format="fltp")
    for frame in container.decode(audio=0):
        for planar in to_float.resample(frame):
            channels = planar.to_ndarray().astype(np.float32, copy=False)
            yield channels[0].copy() if len(channels) == 1 else channels.mean(axis=0)


class WavWriter:
    """Writes a mono WAV as its samples come. What is on disk after each write is a whole file."""

    def __init__(self, path: str | Path, rate: int, subtype: Subtype = Subtype.PCM16) -> None:
        """Creates or replaces the file. `rate` is in Hz. Raises AudioFileError if it can't."""
        self.samples = 0
        self._rate = rate
        self._subtype = subtype
        try:
            self._file = Path(path).open("wb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise AudioFileError(f"{path}: {error.strerror}") from error
        self._write_header()

    def write(self, pcm: Pcm) -> None:
        """Appends samples [n]. 16-bit ones are rounded and clipped, float ones kept as they are."""
        if self._subtype is Subtype.PCM16:
            data = to_int16(pcm).tobytes()
        else:
            data = pcm.astype("<f4", copy=False).tobytes()
        self._file.write(data)
        self.samples += len(pcm)
        self._write_header()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_header(self) -> None:
        end = self._file.seek(0, 2)
        self._file.seek(0)
        self._file.write(wav_header(self._rate, self._subtype, self.samples))
        self._file.seek(max(end, self._file.tell()))
        self._file.flush()


def write_wav(
    path: str | Path, pcm: Pcm, rate: int, subtype: Subtype | str = Subtype.PCM16
) -> None:
    """Writes samples [n] at `rate` Hz as a mono WAV, "pcm16" or "float".

    Raises AudioFileError if the file can't be written.
    """
    with WavWriter(path, rate, Subtype(subtype)) as writer:
        writer.write(pcm)
