"""Ends the OpenMP threads of the thread that has prepared a run.

GNU OpenMP keeps one set of threads for each thread that calls it. If all sets together have more threads than there are
processors, a thread that waits for work goes to sleep almost at once. For a small model, waking threads for each
parallel loop takes longer than the computation. A run and its warm-up call the model on different threads, so the
warm-up's threads would slow down the whole run.

Source: GCC, libgomp/config/linux/wait.h, `gomp_throttled_spin_count_var`.
"""

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LIBRARY = "libgomp"
"""Prefix of the file name of GNU OpenMP's library. A process may have loaded several copies of the library, because
wheels contain their own copy.
"""

_SOFT = 1
"""omp_pause_soft in omp.h, which keeps the settings."""


def end_own_threads() -> None:
    """Ends the OpenMP threads that wait for the calling thread. The next call of a model starts new threads."""
    for path in _loaded():
        with suppress(OSError, AttributeError):  # OpenMP before version 5.0 lacks the function
            ctypes.CDLL(path).omp_pause_resource_all(_SOFT)


def _loaded() -> Iterator[str]:
    """Yields the path of each copy of the library that this process has loaded."""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
        paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if LIBRARY in line}
        yield from sorted(path for path in paths if Path(path).name.startswith(LIBRARY))
