"""Threads put on logical processors, and whether those that compute stay there.

A thread starts with the affinity mask of the thread that made it. So an instance that is loaded,
warmed up and used on a pinned thread takes its framework's threads along, unless the framework
keeps one pool for the whole process; which threads computed is looked up, not believed.
"""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

LEAST_NS = 100_000
"""A thread that ran for less has not computed: it woke up and slept on."""


TICK_S = 0.01
"""Within it the kernel brings the account of every thread up to date, of the calling one, too."""


def run_on(cpus: Sequence[int]) -> None:
    """The calling thread, and those it starts from now on; without processors nothing changes."""
    if cpus:
        os.sched_setaffinity(0, cpus)


@contextmanager
def running_on(cpus: Sequence[int]) -> Iterator[None]:
    """The same for a while."""
    before = os.sched_getaffinity(0) if cpus else ()
    run_on(cpus)
    try:
        yield
    finally:
        run_on(tuple(before))


class Placed(NamedTuple):
    """Threads that computed for an instance in its warm-up; of those, how many may run elsewhere.

    None where the kernel does not tell how long a thread ran.
    """

    threads: int | None
    outside: int | None


class ComputingThreads:
    """Which threads of this process and of its children have computed since this was made."""

    def __init__(self) -> None:
        self._before = _ran_ns()

    def placed(self, cpus: Sequence[int]) -> Placed:
        """cpus: where they should be."""
        before, own = self._before, set(cpus)
        ran = [t for t, ns in _ran_ns().items() if ns - before.get(t, 0) > LEAST_NS]
        if not before:
            return Placed(None, None)
        outside = 0
        for thread in ran:
            with suppress(ProcessLookupError):  # it has ended
                outside += not os.sched_getaffinity(thread) <= own
        return Placed(len(ran), outside)


def _ran_ns() -> dict[int, int]:
    """Thread id -> ns on a processor so far; empty where the kernel has no schedstat."""
    time.sleep(TICK_S)
    found = {}
    for task in tasks():
        with suppress(OSError, ValueError, IndexError):
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return found


TASKS = Path("/proc/self/task")


def tasks() -> Iterator[Path]:
    """The folder of each thread of this process and of its children, in /proc."""
    for task in TASKS.iterdir():
        yield task
        with suppress(OSError):
            for pid in (task / "children").read_text().split():
                yield from Path(f"/proc/{pid}/task").iterdir()


def children_cpu_s() -> float:
    """Of all its descendants: those that live, and those that it or they have waited for."""
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
    """Its own, and those of the children that it has waited for."""
    with suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[11:15]))  # utime, stime, cutime, cstime: proc(5)
    return 0
