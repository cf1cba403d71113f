"""Drops chosen files from the kernel's page cache, and measures how much of these files is cached.

Dirty pages and mapped pages stay in the cache. Source: posix_fadvise(2), POSIX_FADV_DONTNEED.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_PIECE_BYTES = 1 << 20

MOST_RESIDENT = 0.05
"""A file counts as cold if at most this share of it is in the page cache."""


def drop(paths: Iterable[Path]) -> None:
    """Writes dirty pages to the disk, and asks the kernel to drop the files' pages."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(paths: Iterable[Path]) -> float:
    """Returns the share of the files' pages that are in the page cache, in [0, 1]. Raises OSError if the kernel does
    not report the share.
    """
    pages = resident = 0
    for path in paths:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                continue
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                here = _resident(mapped)
        pages += len(here)
        resident += int(np.count_nonzero(here & 1))
    return resident / pages if pages else 0.0


def _resident(mapped: mmap.mmap) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Returns a byte per page, whose lowest bit is 1 if the page is in memory (mincore(2))."""
    view = np.frombuffer(mapped, np.uint8)
    here = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
    library = ctypes.CDLL(None, use_errno=True)
    status = library.mincore(
        ctypes.c_void_p(view.ctypes.data),
        ctypes.c_size_t(len(view)),
        ctypes.c_void_p(here.ctypes.data),
    )
    del view  # because `mmap.close` fails while a view of the map exists
    if status:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return here


def read(paths: Iterable[Path]) -> int:
    """Reads the files from beginning to end, as `cat` does. Returns the number of bytes."""
    total, piece = 0, bytearray(_PIECE_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                total += count
    return total
