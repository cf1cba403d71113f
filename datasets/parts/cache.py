"""Keeps preprocessed rows on disk for later runs, even if a run is killed."""

import errno
import os
import shutil
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.core.units import show_bytes
from harness.errors import ConfigError
from harness.types import Array

_RECORD = np.dtype([("size", "<i8"), ("ctime_ns", "<i8"), ("crc", "<i8")])

Stamps = npt.NDArray[Any]
"""(n, 2) int64: size in bytes and ctime in ns of each sample's file; other values show that the file has changed.
Copying may preserve the mtime (rsync -a, cp -p, tar), but never the ctime.
"""


class RowCache:
    """A cache in two files: `rows`, and `records` with the stamp and the CRC-32 of each row.

    A record is written only after its row. A row may be incomplete if a run was killed, if two runs wrote the row at
    the same time, or if the disk lost data. An incomplete row fails its checksum and is computed again. Rows are read
    with preadv into the caller's arrays. Rows are not memory-mapped, because mapped pages would be read from the disk
    in the timed part, and a full disk would cause a SIGBUS. Several threads may use the cache for different rows.
    """

    def __init__(self, folder: Path, count: int, row_bytes: int) -> None:
        """folder: folder for one combination of files, steps and versions. Raises an OSError if the folder is not
        writable.
        """
        self.folder = folder
        self._count = count
        self._row_bytes = row_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._rows = self._open("rows")
        self._records = self._open("records")

    def _open(self, name: str) -> int:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def checksums(self, stamps: Stamps) -> npt.NDArray[np.int64]:
        """Returns (n,) checksums of the rows that were made from files with these stamps; -1 for missing rows."""
        records = np.zeros(self._count, _RECORD)
        os.preadv(self._records, [_bytes(records)], 0)
        same = (records["size"] == stamps[:, 0]) & (records["ctime_ns"] == stamps[:, 1])
        return np.where(same, records["crc"], -1)

    def need(self, rows: int) -> None:
        """Raises a ConfigError if `rows` more rows do not fit on the disk. Call this method before computing the rows."""
        free_bytes, needed_bytes = shutil.disk_usage(self.folder).free, rows * self._row_bytes
        if needed_bytes > free_bytes:
            raise self._full(
                f"{show_bytes(needed_bytes)} are needed, but only {show_bytes(free_bytes)} are free"
            )

    def read(self, index: int, checksum: int, parts: Sequence[Array]) -> bool:
        """Reads a row into `parts`, which are contiguous arrays. Returns False if the row fails its checksum."""
        size = os.preadv(self._rows, [_bytes(p) for p in parts], index * self._row_bytes)
        return size == self._row_bytes and _checksum(parts) == checksum

    def write(self, index: int, stamp: Sequence[int], parts: Sequence[Array]) -> None:
        record = np.array([(*stamp, _checksum(parts))], _RECORD)
        try:
            self._put(self._rows, [_bytes(p) for p in parts], index * self._row_bytes)
            self._put(self._records, [record.tobytes()], index * _RECORD.itemsize)
        except OSError as e:
            raise self._full(e.strerror or str(e)) from e

    @staticmethod
    def _put(descriptor: int, parts: Sequence[Any], at: int) -> None:
        if os.pwritev(descriptor, parts, at) != sum(len(p) for p in parts):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _full(self, reason: str) -> ConfigError:
        return ConfigError(
            f"the cache {self.folder} cannot take more samples ({reason}): make room there, or set "
            "XDG_CACHE_HOME to a folder on a different disk"
        )


def _bytes(part: Array) -> memoryview:
    return part.reshape(-1).view(np.uint8).data


def _checksum(parts: Sequence[Array]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(_bytes(part), checksum)
    return checksum
