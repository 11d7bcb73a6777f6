"""Reads a voices archive (`voices.tgz`) that somebody else made, without writing a file.

The members are read into memory, so there is no path to escape through, nothing half unpacked and
no need for a writable directory; an archive that would have to escape is refused all the same.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from engine.api import EngineError

MAX_BYTES: Final = 512 << 20
"""Unpacked size of a whole archive."""
MAX_MEMBERS: Final = 4096


class _Bounded:
    """A stream that refuses to give more than `left` bytes: an archive can't grow past it."""

    def __init__(self, stream: gzip.GzipFile, left: int) -> None:
        self._stream = stream
        self._left = left

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise EngineError("it unpacks to more than its limit")
        return data


def read_archive(
    path: Path, suffixes: frozenset[str], *, max_bytes: int = MAX_BYTES
) -> list[tuple[PurePosixPath, bytes]]:
    """The regular files of a gzipped tar that end in one of `suffixes`, hidden ones left out.

    Raises EngineError, naming the archive, for a member with an absolute path, with `..`, that is
    a link or a device, for more than `max_bytes` or MAX_MEMBERS, and for a broken archive.
    """
    files: list[tuple[PurePosixPath, bytes]] = []
    try:
        with gzip.open(path) as stream:
            bounded = _Bounded(stream, max_bytes)
            with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]
                for count, member in enumerate(tar):
                    if count >= MAX_MEMBERS:
                        raise EngineError(f"more than {MAX_MEMBERS} members")
                    name = _checked(member)
                    wanted = name.suffix.lower() in suffixes and not name.name.startswith(".")
                    file = tar.extractfile(member) if member.isreg() and wanted else None
                    if file is not None:
                        files.append((name, file.read()))
            while bounded.read(1 << 16):
                pass  # To the end, where the checksum is.
    except EngineError as error:
        raise EngineError(f"{path}: {error}") from error
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise EngineError(f"{path}: not a readable .tgz archive: {error}") from error
    return files


def _checked(member: tarfile.TarInfo) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise EngineError(f"member {member.name!r} points outside the archive")
    if not (member.isreg() or member.isdir()):
        raise EngineError(f"member {member.name!r} is neither a file nor a folder")
    return name
