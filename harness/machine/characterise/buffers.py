"""Creates page-aligned, touched buffers that are either in the caches or evicted from them."""

import mmap
import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from harness.machine.cores import CPUS
from harness.machine.kernel import text
from harness.types import Array

HUGE_FROM_BYTES = 4 << 20
"""Buffers of at least this size use huge pages, because NumPy requests huge pages too
(numpy/_core/src/multiarray/alloc.c). Without huge pages, the buffers would be slower than a user's arrays.
"""

_UNKNOWN_CACHE_BYTES = 64 << 20
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def pages(size: int) -> Array:
    """Returns a page-aligned uint8 array, (size,), whose pages are untouched. Uses huge pages if NumPy would request
    them.
    """
    memory = mmap.mmap(-1, size)
    if size >= HUGE_FROM_BYTES:
        with suppress(OSError, AttributeError):  # raised if the kernel does not support huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def touched(size: int) -> Array:
    """Returns a page-aligned uint8 array, (size,), with every byte written."""
    array = pages(size)
    array[:] = 1
    return array


def last_cache_bytes() -> int:
    """Returns the size of the largest cache that the kernel reports for the first processor, or 64 MiB if the kernel
    reports no cache.
    """
    folders = (CPUS / "cpu0/cache").glob("index*")
    sizes = [parse_size(text(folder / "size")) for folder in folders]
    return max((size for size in sizes if size), default=_UNKNOWN_CACHE_BYTES)


def parse_size(size: str) -> int | None:
    """Parses a size; for example, '1024K' becomes 1048576."""
    match = re.fullmatch(r"(\d+)([KMG]?)", size)
    return int(match[1]) * _UNITS[match[2]] if match else None


def evictor() -> Callable[[], object]:
    """Returns a function that evicts the caches' content by reading and writing a buffer of twice the size of the last
    cache.

    Filling this buffer would not be enough, because the C library's writes of large blocks bypass the caches.
    """
    other = touched(2 * last_cache_bytes())
    return lambda: np.add(other, 1, out=other)
