"""Redirects the output of a C or C++ library from stdout to stderr, because stdout is reserved for the harness's
results.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_libc = ctypes.CDLL(None)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirects descriptor 1 of the process. Flushes C's buffer before and after."""
    sys.stdout.flush()
    _libc.fflush(None)
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        _libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
