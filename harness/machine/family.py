"""Adds up the resources that a process and its descendants have used, according to /proc.

Descendants count because the measured process itself is idle if instances run in separate processes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.core.units import NS_PER_S

PROCESSES = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_SWITCHES = {
    b"voluntary_ctxt_switches": "measured_voluntary_switches",
    b"nonvoluntary_ctxt_switches": "measured_involuntary_switches",
}
"""Maps a line in a thread's status file to a column of host.csv."""

_CORES = b"Cpus_allowed"
_PREFIXES = (*_SWITCHES, _CORES + b":")
_MOST_BYTES = 1 << 16

RUN_QUEUE = "measured_run_queue_s"
"""Total time in which threads were ready to run but waited for a core; missing if the kernel lacks schedstat.
"""

ANONYMOUS = "measured_anonymous_bytes"
"""Resident memory that is neither backed by a file nor shared; this memory excludes the journal and LoadGen's maps.
"""

STOPPED = "measured_stopped_looks"
"""Number of readings at which a signal or a debugger had stopped a process."""

CONFINED = "measured_confined_threads"
LOWERED = "measured_lowered_threads"
"""Number of times that a thread lost cores or priority between two readings."""

_TRACED_OR_STOPPED = "Tt"

Row = Mapping[str, float]


class Family:
    """A process and its descendants, including descendants that have ended.

    The sums never decrease, because the values of ended processes and threads are kept.
    """

    def __init__(self, pid: int | None = None, processes: Path = PROCESSES) -> None:
        """pid: None for this process. processes: the folder /proc."""
        self.pid = int((processes / "self").readlink().name) if pid is None else pid
        self._processes = processes
        self._used: dict[int, Row] = {}
        self._threads: dict[int, _Threads] = {}

    def read(self) -> Row:
        """Returns the values by host.csv column. Raises OSError if the process itself has ended; its descendants may
        have ended.
        """
        memory: dict[str, float] = {}
        for pid in self._alive():
            try:
                self._used[pid], held = self._read(pid)
            except OSError:
                if pid == self.pid:
                    raise
                continue  # the process ended after the listing
            _add(memory, held)
        return added(self._used.values()) | memory

    def _read(self, pid: int) -> tuple[Row, Row]:
        """Returns the resources used since the process began, and its current memory."""
        folder = self._processes / str(pid)
        # The program's name in brackets may contain spaces, so fields are counted from the last bracket.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        used = {
            "measured_minor_faults": int(fields[7]),
            "measured_major_faults": int(fields[9]),
            "measured_cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
            STOPPED: self._used.get(pid, {}).get(STOPPED, 0) + (fields[0] in _TRACED_OR_STOPPED),
            **self._threads.setdefault(pid, _Threads(folder)).read(),
        }
        held: dict[str, float] = {"measured_rss_bytes": int(fields[21]) * _PAGE_BYTES}
        with suppress(OSError):
            _, resident, shared, *_ = map(int, (folder / "statm").read_text().split())
            held[ANONYMOUS] = (resident - shared) * _PAGE_BYTES
        return used, held

    def _alive(self) -> Iterator[int]:
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            for children in (self._processes / str(pid) / "task").glob("*/children"):
                with suppress(OSError, ValueError):  # the thread has just ended
                    waiting += map(int, children.read_text().split())


class _Threads:
    """Adds up context switches, run-queue time, and losses of cores and priority over all threads of one process.

    The kernel discards the counts of a thread that ends. The sums keep the last counts that were read, so the counts
    from the last second of a thread may be missing.
    """

    def __init__(self, process: Path) -> None:
        """process: the process's folder in /proc."""
        self.process = process
        self._threads: dict[str, Row] = {}
        # Counts of ended threads whose IDs now belong to new threads.
        self._of_others: dict[str, float] = {}
        self._places: dict[str, _Place] = {}
        self._lost = {CONFINED: 0.0, LOWERED: 0.0}

    def read(self) -> Row:
        # `_places` is rebuilt at each reading, because the kernel may reuse the ID of an ended thread.
        before, self._places = self._places, {}
        for task in (self.process / "task").iterdir():
            with suppress(OSError):  # the thread has just ended
                counts, place = _read(task)
                self._note(task.name, counts)
                if place is not None:
                    self._note_lost(before.get(task.name, place), place)
                    self._places[task.name] = place
        sums = dict.fromkeys(_SWITCHES.values(), 0.0) | self._lost
        for counts in (*self._threads.values(), self._of_others):
            _add(sums, counts)
        return sums

    def _note(self, thread: str, now: Row) -> None:
        before = self._threads.get(thread, {})
        if any(now.get(column, 0) < value for column, value in before.items()):
            _add(self._of_others, before)
        self._threads[thread] = now

    def _note_lost(self, before: "_Place", now: "_Place") -> None:
        self._lost[CONFINED] += now.cores & before.cores == now.cores != before.cores
        self._lost[LOWERED] += now.nice > before.nice


class _Place(NamedTuple):
    """The processors that a thread may use, and its priority."""

    cores: int
    """A bit mask with one bit per logical processor."""
    nice: int


def _read(task: Path) -> tuple[Row, _Place | None]:
    """Returns a thread's counts and place; the place is None if the thread has ended."""
    counts: dict[str, float] = {}
    cores = 0
    for line in _content(f"{task}/status").splitlines():
        if line.startswith(_PREFIXES):
            name, _, value = line.partition(b":")
            if name == _CORES:
                cores = int(value.replace(b",", b""), 16)
            else:
                counts[_SWITCHES[name]] = int(value)
    with suppress(OSError, ValueError, IndexError):
        counts[RUN_QUEUE] = int(_content(f"{task}/schedstat").split()[1]) / NS_PER_S
    with suppress(OSError, ValueError, IndexError):
        nice = int(_content(f"{task}/stat").rpartition(b")")[2].split()[16])
        return counts, _Place(cores, nice)
    return counts, None


def _content(path: str) -> bytes:
    """Returns a small file's content.

    Avoids pathlib, which takes three times as long, because such files are read every second for each thread.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)


def added(rows: Iterable[Row]) -> dict[str, float]:
    """Returns the sum of each column over the rows."""
    sums: dict[str, float] = {}
    for row in rows:
        _add(sums, row)
    return sums


def _add(sums: dict[str, float], row: Row) -> None:
    for column, value in row.items():
        sums[column] = sums.get(column, 0) + value
