"""Processes many samples on all cores.

The work uses threads instead of processes, because decoders and NumPy release the GIL while they work. Threads can
write rows in place, and two threads decode as many images per second as two processes (see docs/decisions/datasets.md).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from harness.errors import ConfigError

TELL_EVERY_S = 0.25


class BadSample(ConfigError):
    """Raised for a sample that cannot be used. The remaining samples are still checked."""


def each(
    work: Callable[[int], None],
    count: int,
    progress: Callable[[int, int], None],
    enough: int | None = None,
) -> list[str]:
    """Calls work(0), ... work(count - 1), in this order, on one thread per core.

    Returns the messages of the bad samples in order. Any other exception ends the work.
    progress: called on the caller's thread with the approximate number of finished samples, and with `count`.
    enough: number of bad samples after which the work stops.
    """
    bad: dict[int, str] = {}
    # The threads share this iterator, because next(todo) is atomic under the GIL.
    todo = iter(range(count))
    taken = 0
    stop = False

    def run() -> None:
        nonlocal taken
        for i in todo:
            if stop or (enough is not None and len(bad) >= enough):
                return
            taken = i
            try:
                work(i)
            except BadSample as e:
                bad[i] = str(e)

    threads = max(1, min(len(os.sched_getaffinity(0)), count))
    with ThreadPoolExecutor(threads, thread_name_prefix="preprocess") as pool:
        try:
            left = {pool.submit(run) for _ in range(threads)}
            while left:
                done, left = wait(left, TELL_EVERY_S, return_when="FIRST_EXCEPTION")
                for future in done:
                    future.result()
                if left:
                    progress(taken, count)
        finally:
            stop = True
    return [bad[i] for i in sorted(bad)]
