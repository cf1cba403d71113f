"""Reads arrays in an .npz archive row by row, so that a large array is never completely in memory.

A small array is read completely and kept in memory. Rows of a large uncompressed array (numpy.savez) are read from
their position in the file. A large compressed array is unpacked into the cache once, and its rows are read from the
cache. All bytes of an array are checked against the archive's CRC-32 before a row is returned.
"""

import hashlib
import json
import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from harness.datasets.parts.cache import RowCache, Stamps
from harness.datasets.parts.listing import twice
from harness.datasets.parts.sources import refuse, unreadable
from harness.errors import ConfigError
from harness.types import Array

WHOLE_BYTES = 64 << 20
"""Arrays of at most this size are held completely in memory."""

_BLOCK_BYTES = 4 << 20
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Local header of an entry in a zip file. The header contains the lengths of the name and of the extra field."""

_BROKEN = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Exceptions that damaged or encrypted archives cause. NotImplementedError is a RuntimeError."""

Progress = Callable[[int, int], None]


class Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    fortran: bool
    """True if the first index varies fastest."""
    offset: int
    """Size of the .npy header before the values, in bytes."""

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path) -> dict[str, Header]:
    """Returns the headers by array name, without reading the arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            every = archive.namelist()
            # If both `x` and `x.npy` exist, numpy reads `x`, so such a file is refused.
            refuse(twice(f"{path} has an array", (n.removesuffix(".npy") for n in every)))
            names = [n for n in every if n.endswith(".npy")]
            return {name.removesuffix(".npy"): _header(archive, name) for name in names}
    except _BROKEN as e:
        raise unreadable(path, e) from e


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(name) as file:
        read = npy.read_array_header_1_0
        if npy.read_magic(file) != (1, 0):
            read = npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
        return Header(shape, dtype, fortran, file.tell())


class ArchivedArray:
    """An array in the archive. Every method may raise ConfigError if the file is damaged or the cache is full."""

    def __init__(
        self, path: Path, name: str, header: Header, cache_dir: Path | None, progress: Progress
    ) -> None:
        """cache_dir: folder for the cache of large compressed arrays; if None, every read unpacks the complete array.

        progress: called with the number of rows read and the number of rows in the array.
        """
        self._path, self._name, self._header = path, f"{name}.npy", header
        self._cache_dir, self._progress = cache_dir, progress
        self._read: Callable[[Array], Array] | None = None

    def rows(self, chosen: Array) -> Array:
        """Returns a copy of the chosen rows, (n, ...). chosen: (n,) indices."""
        if self._read is None:
            try:
                self._read = self._opened()
            except _BROKEN as e:
                raise unreadable(self._path, e) from e
        return self._read(chosen)

    def _opened(self) -> Callable[[Array], Array]:
        """Checks the array's bytes, and returns the function that reads rows."""
        header = self._header
        if header.nbytes <= WHOLE_BYTES or header.fortran:
            with np.load(self._path, allow_pickle=False) as file:
                whole: Array = file[self._name.removesuffix(".npy")]
            return lambda chosen: whole[chosen]
        with zipfile.ZipFile(self._path) as archive:
            info = archive.getinfo(self._name)
        if info.compress_type == zipfile.ZIP_STORED:
            for _ in self._blocks():  # reads to the end, where zipfile compares the CRC-32
                pass
            return self._in_place(info)
        cache = self._open_cache(info.CRC)
        return self._streamed if cache is None else self._cached(cache)

    def _in_place(self, info: zipfile.ZipInfo) -> Callable[[Array], Array]:
        """Returns the function that reads rows from their position in the archive."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        local = os.pread(descriptor, _LOCAL_HEADER.size, info.header_offset)
        start = info.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(local))
        start += self._header.offset
        size = self._header.row_bytes

        def read(chosen: Array) -> Array:
            rows = self._empty(len(chosen))
            for row, index in zip(rows.reshape(len(rows), -1), chosen.tolist(), strict=True):
                if os.preadv(descriptor, [row.view(np.uint8).data], start + index * size) != size:
                    raise ConfigError(f"{self._path} has changed since the run began: run again")
            return rows

        return read

    def _open_cache(self, checksum: int) -> RowCache | None:
        """Returns the cache of this file's array; None if no cache folder is writable."""
        if self._cache_dir is None:
            return None
        about = [str(self._path.resolve()), self._name, checksum, *map(str, self._header)]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        try:
            folder = self._cache_dir / "arrays" / key
            return RowCache(folder, self._header.shape[0], self._header.row_bytes)
        except OSError:
            return None

    def _cached(self, cache: RowCache) -> Callable[[Array], Array]:
        stamps = self._stamps()
        checksums = cache.checksums(stamps)
        if (checksums < 0).any():
            self._fill(cache, stamps)
            checksums = cache.checksums(stamps)

        def read(chosen: Array) -> Array:
            rows = self._empty(len(chosen))
            for row, index in zip(rows.reshape(len(rows), -1), chosen.tolist(), strict=True):
                if not cache.read(index, int(checksums[index]), [row]):
                    return self._streamed(chosen)
            return rows

        return read

    def _fill(self, cache: RowCache, stamps: Stamps) -> None:
        cache.need(len(stamps))
        for first, block in self._blocks():
            for i, row in enumerate(block, first):
                cache.write(i, stamps[i], [np.ascontiguousarray(row)])

    def _stamps(self) -> Stamps:
        stat = self._path.stat()
        stamp = np.array([stat.st_size, stat.st_ctime_ns], np.int64)
        return np.tile(stamp, (self._header.shape[0], 1))

    def _streamed(self, chosen: Array) -> Array:
        """Reads the complete array and keeps the chosen rows."""
        rows = self._empty(len(chosen))
        for first, block in self._blocks():
            places = np.flatnonzero((first <= chosen) & (chosen < first + len(block)))
            rows[places] = block[chosen[places] - first]
        return rows

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        """Yields the array block by block, as (index of the first row, rows).

        Raises a ConfigError at the end if the bytes differ from the archived bytes.
        """
        total, size = self._header.shape[0], self._header.row_bytes
        step = max(1, _BLOCK_BYTES // max(1, size))
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(self._name) as file:
                file.read(self._header.offset)
                for first in range(0, total, step):
                    count = min(step, total - first)
                    content = _exactly(file, count * size)
                    rows = np.frombuffer(content, self._header.dtype)
                    yield first, rows.reshape(count, *self._header.shape[1:])
                    self._progress(first + count, total)
                # Reading at the end of a file returns nothing, but makes zipfile compare the CRC-32.
                if file.read(1):
                    raise ValueError(f"{self._name} is longer than its header states")
        except _BROKEN as e:
            raise unreadable(self._path, e) from e

    def _empty(self, count: int) -> Array:
        return np.empty((count, *self._header.shape[1:]), self._header.dtype)


def _exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("the archive ends in the middle of an array")
    return content
