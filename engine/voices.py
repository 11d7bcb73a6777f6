"""Voices by name, from directories and archives. A client says a name, never a path."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api import BadParams, EngineError
from engine.archive import read_archive
from engine.mimi.codec import Mimi
from engine.rows import Rows
from engine.voice_files import SUFFIXES, Recording, Voice, VoiceShape, read_voice

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


class VoiceRegistry:
    """The voices of one model."""

    def __init__(self, sources: Iterable[Path], shape: VoiceShape) -> None:
        """Reads the voices of `sources`: directories and .tgz archives.

        A name of a later source replaces an earlier source's; of one voice in several forms the
        first of SUFFIXES is taken. Raises EngineError that names the file for a voice that can't
        be read, doesn't fit the model, or has a name outside [A-Za-z0-9_-]+.
        """
        self._voices: dict[str, Voice] = {}
        for source in sources:
            files = sorted(_files(source), key=lambda file: -SUFFIXES.index(_suffix(file[0])))
            for path, data in files:
                try:
                    if not _NAME.fullmatch(path.stem):
                        raise EngineError("a voice's name has only letters, digits, _ and -")
                    self._voices[path.stem] = read_voice(_suffix(path), data, shape)
                except EngineError as error:
                    raise EngineError(f"{source}: {path.name}: {error}") from error

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in alphabetical order."""
        return tuple(sorted(self._voices))

    def find(self, name: str) -> str:
        """The registered name that `name` means: `NATF2.pt` is `NATF2`.

        Raises BadParams("voice", ...), with some names to choose from, if there is none.
        """
        stem = name.removesuffix(".pt")
        if stem not in self._voices:
            names = self.names
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            known = ", ".join(names[:8]) + more if names else "there are none"
            raise BadParams("voice", f"unknown voice {name[:64]!r}; known voices: {known}")
        return stem

    def get(self, name: str) -> Voice:
        """The voice of a registered name."""
        return self._voices[name]

    def keep(self, name: str, codes: Tensor) -> None:
        """Puts a recording's codes in its place, so that it is encoded once."""
        self._voices[name] = codes


def encode_recording(
    mimi: Mimi, voice: Recording, device: torch.device
) -> Generator[None, None, Tensor]:
    """The codes [frames, books] of a recording, the last frame filled up with silence.

    Encodes frame by frame in a state of its own, as the models' voices were, and yields between
    the frames.
    """
    state = mimi.state(1)
    rows = Rows([0], device, copy=True)
    pcm = torch.from_numpy(voice.pcm)
    pcm = F.pad(pcm, (0, -len(pcm) % mimi.frame_size)).to(device)
    codes: list[Tensor] = []
    for frame in pcm.view(-1, 1, mimi.frame_size):
        codes.append(mimi.encode(state, rows, frame))
        yield
    return torch.cat(codes)


def _suffix(path: PurePath) -> str:
    return path.suffix.lower()


def _files(source: Path) -> Iterator[tuple[PurePath, bytes]]:
    """The voice files of a directory or archive, with their bytes; hidden files left out."""
    if source.is_file():
        yield from read_archive(source, frozenset(SUFFIXES))
        return
    if not source.is_dir():
        raise EngineError(f"{source}: no such directory of voices")
    for path in source.iterdir():
        if _suffix(path) in SUFFIXES and path.is_file() and not path.name.startswith("."):
            yield path, path.read_bytes()
