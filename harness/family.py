"""This process, its parent and its children (Linux)."""

import ctypes
import os
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
    """Of the children that live; those that were waited for are in getrusage's RUSAGE_CHILDREN."""
    ticks = 0
    for task in TASKS.iterdir():
        with suppress(OSError):
            for pid in (task / "children").read_text().split():
                after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(after_name[11]) + int(after_name[12])  # utime, stime: proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")
