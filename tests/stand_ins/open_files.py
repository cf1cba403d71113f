"""A process with many open files, so that new descriptors are too large for `select`."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 1100
"""Number of open files, which exceeds Linux's FD_SETSIZE of 1024."""


@contextmanager
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * COUNT)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(COUNT)]
    try:
        yield
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
