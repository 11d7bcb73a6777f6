"""Archives of voices that somebody else made."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from engine import archive
from engine.api import EngineError
from engine.archive import read_archive

WANTED = frozenset({".pt", ".wav"})


Member = tuple[tarfile.TarInfo, bytes]


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = "/etc/passwd"
    return info, data


def write(path: Path, members: Iterable[Member]) -> Path:
    file = path / "voices.tgz"
    with tarfile.open(file, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return file


def test_files_are_read_wherever_they_are(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        [
            member("voices", kind=tarfile.DIRTYPE),
            member("voices/NATF2.pt", b"one"),
            member("./deep/er/NATM0.WAV", b"two"),
            member("voices/README.md", b"three"),
            member("voices/._NATF2.pt", b"a Mac's"),
        ],
    )
    found = {str(name): data for name, data in read_archive(file, WANTED)}
    assert found == {"voices/NATF2.pt": b"one", "deep/er/NATM0.WAV": b"two"}


@pytest.mark.parametrize("name", ["/etc/evil.pt", "../evil.pt", "voices/../../evil.pt"])
@pytest.mark.parametrize("suffix", ["", ".txt"])
def test_a_member_outside_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    file = write(tmp_path, [member("good.pt", b"x"), member(name + suffix, b"x")])
    with pytest.raises(EngineError, match=r"voices.tgz: member .*evil.* points outside"):
        read_archive(file, WANTED)


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
)
def test_only_files_and_folders_are_taken(tmp_path: Path, kind: bytes) -> None:
    file = write(tmp_path, [member("evil.pt", kind=kind)])
    with pytest.raises(EngineError, match=r"'evil.pt' is neither a file nor a folder"):
        read_archive(file, WANTED)


@pytest.mark.parametrize("name", ["big.pt", "big.txt"])
def test_it_cant_unpack_to_more_than_its_limit(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, [member(name, bytes(1 << 20))])
    assert file.stat().st_size < 1 << 14
    assert len(read_archive(file, WANTED, max_bytes=1 << 21)) == (name == "big.pt")
    with pytest.raises(EngineError, match="unpacks to more than its limit"):
        read_archive(file, WANTED, max_bytes=1 << 20)


def test_a_header_that_claims_too_much_is_stopped(tmp_path: Path) -> None:
    info, _ = member("header", kind=tarfile.XHDTYPE)
    info.size = 1 << 40
    file = tmp_path / "voices.tgz"
    file.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 20)))
    with pytest.raises(EngineError, match=r"voices\.tgz: "):
        read_archive(file, WANTED, max_bytes=1 << 19)


def test_it_cant_have_members_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    assert len(read_archive(write(tmp_path, [member("a.pt")] * 3), WANTED)) == 3
    with pytest.raises(EngineError, match="more than 3 members"):
        read_archive(write(tmp_path, [member("a.pt")] * 4), WANTED)


@pytest.mark.parametrize("cut", [0, 5, 40, -9])
def test_a_broken_archive_is_named(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path, [member("a.pt", bytes(range(256)) * 40)])
    file.write_bytes(file.read_bytes()[:cut] if cut else b"no archive at all")
    with pytest.raises(EngineError, match=r"voices\.tgz: not a readable \.tgz archive"):
        read_archive(file, WANTED)
