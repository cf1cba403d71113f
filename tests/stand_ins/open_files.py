"""A process with many open files, so that the next ones have numbers that `select` does not take."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 1100
"""More than FD_SETSIZE of Linux, which is 1024."""


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
