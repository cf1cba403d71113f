"""Implements LoadGen's callbacks. The callbacks must not raise errors, which would crash LoadGen."""

import gc
import os
import re
import resource
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.clock import wall_offset_ns
from harness.machine.family import RUN_QUEUE, Family
from harness.machine.slices import SLICE_NS, shorten_slice
from harness.machine.threads import children_cpu_s, run_on
from harness.models.opened.separate_instance import SeparateInstance
from harness.run.journal import Journal
from harness.run.measured.dispatch.threads import WORKER, Dispatcher
from harness.types import Dataset

CLEAR_REFS = Path("/proc/self/clear_refs")
"""Writing 5 to this file resets the process's memory peak. Source: Linux, filesystems/proc.rst."""

Die = Callable[[BaseException], None]
"""Reports the error to the supervisor and ends this process."""


class SampleCallbacks:
    """Loads and unloads the dataset's samples, and measures the resources used between load and unload.

    Garbage collection is off between load and unload, in this process and in the processes of `separate`.

    LoadGen calls `load` and `unload` on its issuing thread. After `load`, that thread is bound to `cpus` (() for any).
    The thread is not bound earlier, because threads that LoadGen and the dataset start before `load` would inherit the
    binding, and they must not share these processors. If LoadGen's thread only issues queries, it also gets a short
    time slice.
    """

    def __init__(
        self,
        dataset: Dataset,
        journal: Journal,
        die: Die,
        cpus: Sequence[int] = (),
        separate: Sequence[SeparateInstance] = (),
        prepare: Callable[[Sequence[int]], None] | None = None,
        *,
        only_issues: bool = False,
    ) -> None:
        """prepare: receives the indices of the loaded samples before the first query.

        only_issues: whether LoadGen's thread only issues queries and computes no answers.
        """
        self._only_issues = only_issues
        self.slice: dict[str, Any] = {}
        """Time slice of LoadGen's thread, or the reason why the thread kept the kernel's default.

        Empty if the default is intended.
        """
        self._separate = separate
        self._prepare = prepare
        self._cpus = cpus
        self._anywhere = tuple(os.sched_getaffinity(0)) if cpus else ()
        self._dataset = dataset
        self._journal = journal
        self._die = die
        self._peak_before_bytes = _peak_bytes()
        self._no_peak = _forget_peak()
        self._rss_before_bytes = _rss_bytes()
        self._family = Family()
        self._start: dict[str, float] | None = None
        self._end: dict[str, float] | None = None
        self._cyclic_garbage: int | None = 0

    def load(self, indices: list[int]) -> None:
        self._journal.loading = True
        run_on(self._anywhere)
        try:
            self._dataset.load(indices)
            if self._prepare is not None:
                self._prepare(indices)
            for each in self._separate:
                each.start_run()
        except BaseException as e:  # noqa: BLE001 - LoadGen cannot handle an error, so the process ends here
            self._die(e)
        gc.collect()
        # From now on, the garbage collector skips the objects that already exist.
        gc.freeze()
        gc.disable()
        run_on(self._cpus)
        if self._only_issues and not self.slice:
            reason = shorten_slice()
            self.slice = {"ns": None if reason else SLICE_NS, "reason": reason or None}
        self._start = self._start or self._usage()
        self._journal.loading = False

    def unload(self, indices: list[int]) -> None:
        self._end = self._usage()
        # `loading` stays True until the next set is loaded or the logs are written
        self._journal.loading = True
        collected = [
            self._cyclic_garbage,
            gc.collect(),
            *(each.end_run() for each in self._separate),
        ]
        gc.enable()
        counts = [objects for objects in collected if objects is not None]
        self._cyclic_garbage = sum(counts) if len(counts) == len(collected) else None
        try:
            self._dataset.unload(indices)
        except BaseException:  # noqa: BLE001 - every query is answered, so a note is enough
            traceback.print_exc()

    def used(self) -> dict[str, Any]:
        """Returns the resources used between loading the first set and unloading the last set.

        rss_peak_bytes: peak memory since the process began. rss_run_peak_bytes: peak memory
        since LoadGen's start; if it is None, rss_run_peak_reason explains why.
        """
        peak_bytes = _peak_bytes()
        peaks_bytes = [p for p in (self._peak_before_bytes, peak_bytes) if p is not None]
        # `unload` sets `_end`, but LoadGen does not call `unload` if LoadGen cannot open its logs.
        end = self._end or self._usage()
        start = self._start or end
        return {k: end[k] - start[k] for k in end if k in start} | {
            "rss_before_bytes": self._rss_before_bytes,
            "cyclic_garbage_objects": self._cyclic_garbage,
            "rss_peak_bytes": max(peaks_bytes, default=None),
            "rss_run_peak_bytes": None if self._no_peak else peak_bytes,
            "rss_run_peak_reason": self._no_peak,
        }

    def _usage(self) -> dict[str, float]:
        """Returns the resources that this process has used so far.

        cpu_s includes descendants. wall_offset_ns changes only when the wall clock is stepped or slewed.
        run_queue_s: time for which threads, including threads of descendants, waited for a core; missing if
        the kernel does not report it.
        """
        used = resource.getrusage(resource.RUSAGE_SELF)
        usage = {
            "cpu_s": used.ru_utime + used.ru_stime + children_cpu_s(),
            "wall_s": time.monotonic(),
            "wall_offset_ns": wall_offset_ns(),
            "voluntary_switches": used.ru_nvcsw,
            "involuntary_switches": used.ru_nivcsw,
        }
        with suppress(OSError, ValueError, IndexError, KeyError):
            usage["run_queue_s"] = self._family.read()[RUN_QUEUE]
        return usage


def issuing(
    dispatcher: Dispatcher, die: Die, order: Callable[[int], list[int]] | None = None
) -> Callable[[list[int], list[int]], None]:
    """Returns the issue callback. order: returns the given number of sample indices, which replace LoadGen's choice."""

    def issue(ids: list[int], indices: list[int]) -> None:
        try:
            dispatcher.issue(ids, indices if order is None else order(len(indices)))
        except BaseException as e:  # noqa: BLE001 - the supervisor must get the reason before the process ends
            die(e)

    return issue


def no_worker_dies_alone(die: Die) -> None:
    """Ends the process when a worker dies, because LoadGen would wait forever for the worker's samples.

    A plug-in's thread may die without ending the process.
    """

    def raised(e: threading.ExceptHookArgs) -> None:
        if e.thread is not None and e.thread.name.startswith(WORKER):
            die(e.exc_value or e.exc_type())
        threading.__excepthook__(e)

    threading.excepthook = raised


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int | None:
    """Returns the peak memory since the process began, or since the last call of `_forget_peak`.

    Does not use ru_maxrss, because a child process inherits the value of its parent.
    """
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _forget_peak() -> str | None:
    """Resets the peak that `_peak_bytes` reads. Returns the reason if the reset failed; None if it succeeded."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError as e:
        return f"{CLEAR_REFS} cannot be written: {e.strerror}"
    return None if _peak_bytes() is not None else "/proc/self/status has no VmHWM"
