"""This process, its parent and its children (Linux)."""

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")


def die_with_parent() -> None:
    """SIGKILL when the parent dies, however it dies (prctl(2), PR_SET_PDEATHSIG)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the closed socket must do
        return
    if os.getppid() == 1:
        os._exit(1)


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
