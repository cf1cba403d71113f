"""Pins threads to logical processors, and checks which threads computed on which processors.

A new thread inherits the affinity mask of the thread that started it. If a pinned thread loads, warms up and calls an
instance, the framework's threads are therefore pinned as well. A framework that uses one thread pool for the whole
process is an exception. The kernel's CPU times show which threads have actually computed.
"""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

LEAST_NS = 100_000
"""A thread counts as computing only if it ran for at least this time, because threads that only wake up and go back to
sleep run for a shorter time.
"""

TICK_S = 0.01
"""Time to wait before CPU times are read, because the kernel updates CPU times only once per tick."""


def run_on(cpus: Sequence[int]) -> None:
    """Pins the calling thread, and the threads that it starts later. Does nothing if `cpus` is empty."""
    if cpus:
        os.sched_setaffinity(0, cpus)


@contextmanager
def running_on(cpus: Sequence[int]) -> Iterator[None]:
    """Pins threads like `run_on`, and restores the affinity mask at the end of the block."""
    before = os.sched_getaffinity(0) if cpus else ()
    run_on(cpus)
    try:
        yield
    finally:
        run_on(tuple(before))


class Placed(NamedTuple):
    """Number of threads that computed for an instance during its warm-up.

    Both numbers are None if the kernel does not report how long each thread ran.
    """

    threads: int | None
    outside: int | None
    """Number of these threads that may run on processors other than the instance's processors."""


class ComputingThreads:
    """Finds the threads of this process and its children that compute after this object is created."""

    def __init__(self) -> None:
        self._before = _ran_ns()

    def placed(self, cpus: Sequence[int]) -> Placed:
        """Counts the threads that computed. cpus: the instance's logical processors."""
        before, own = self._before, set(cpus)
        ran = [t for t, ns in _ran_ns().items() if ns - before.get(t, 0) > LEAST_NS]
        if not before:
            return Placed(None, None)
        outside = 0
        for thread in ran:
            with suppress(ProcessLookupError):  # the thread has ended
                outside += not os.sched_getaffinity(thread) <= own
        return Placed(len(ran), outside)


def _ran_ns() -> dict[int, int]:
    """Returns the processor time of each thread so far in ns, by thread ID, or {} if the kernel lacks schedstat."""
    time.sleep(TICK_S)
    ran_ns = {}
    for task in tasks():
        with suppress(OSError, ValueError, IndexError):
            ran_ns[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return ran_ns


TASKS = Path("/proc/self/task")


def tasks() -> Iterator[Path]:
    """Yields the folder in /proc for each thread of this process and of its children."""
    for task in TASKS.iterdir():
        yield task
        with suppress(OSError):
            for pid in (task / "children").read_text().split():
                yield from Path(f"/proc/{pid}/task").iterdir()


def children_cpu_s() -> float:
    """Returns the processor time of all descendants that are running or that this process has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = sum(_ticks(pid) for pid in _descendants("self"))
    return waited.ru_utime + waited.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def _descendants(pid: str) -> Iterator[str]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield child
                    yield from _descendants(child)


def _ticks(pid: str) -> int:
    """Returns the clock ticks used by a process and by the children that it has waited for."""
    with suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[11:15]))  # fields utime, stime, cutime and cstime of proc(5)
    return 0
