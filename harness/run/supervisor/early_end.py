"""Ends a run early if too many queries are already late, or if the memory of the measured process grows without limit."""

from collections.abc import Callable

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS, show_bytes, show_ns
from harness.errors import RunDied, RunHopeless
from harness.loadgen.plan import LoadPlan
from harness.machine.family import ANONYMOUS
from harness.machine.host_log import HostLog
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.watchdog import Now

UNSEEN_NS = 100 * NS_PER_MS
"""An answered query may look unanswered for this long, because a batch's row is written after its answer."""

LEFT_SHARE = 0.02
GROWN_SHARE = 0.10
"""A run is ended if less than LEFT_SHARE of all memory is left and the measured process has grown by more than
GROWN_SHARE of all memory since the first query. A normal run grows far less, because its samples are already loaded.
"""


class MemoryLimit:
    """Checks how much memory is left. Python does not collect cyclic garbage during a run, so a backend's garbage may
    fill the memory.
    """

    def __init__(self, log: HostLog, total_bytes: int) -> None:
        """log: the host log, which grows during the run. total_bytes: memory of the machine or the container."""
        self._log = log
        self._total_bytes = total_bytes
        self._first_bytes: float | None = None

    def check(self, now: Now) -> None:
        """Raises RunDied if the kernel would soon kill a process."""
        row = self._log.rows[-1] if self._log.rows else {}
        if now.issued and self._first_bytes is None:
            self._first_bytes = row.get(ANONYMOUS)
        left_bytes = row.get("memory_available_bytes")
        if left_bytes is None or left_bytes > LEFT_SHARE * self._total_bytes:
            return
        if now.waiting and (growth := self.growth()):  # nothing waits when the run is over
            raise RunDied(
                f"the measured process was ended because only {show_bytes(left_bytes)} of memory was left"
                f"{growth}: find the data that the backend keeps per batch"
            )

    def growth(self) -> str:
        """Returns the end of a sentence about the growth of the measured process; '' if the process grew little."""
        # The last row may be from after the death of the process, which then has 0 bytes or no value.
        held = (row[ANONYMOUS] for row in reversed(self._log.rows) if row.get(ANONYMOUS))
        begun, now = self._first_bytes, next(held, None)
        if begun is None or now is None or now - begun < GROWN_SHARE * self._total_bytes:
            return ""
        return (
            f"; its memory grew from {show_bytes(begun)} to {show_bytes(now)} during the run, in which "
            "Python does not collect cyclic garbage"
        )


class LateLimit:
    """Counts late queries. Each `check` reads only new rows. This class is not thread-safe.

    The count is never too high, because Server's start is assumed to be as late as the queries so far allow.
    """

    def __init__(self, rows: NewRows, most_late: Callable[[LoadPlan], int] | None) -> None:
        """most_late: returns how many queries of a plan may be late; None: never ends a run early."""
        plan = rows.plan
        self._rows = rows
        self._plan = plan
        self._bound_ns = plan.latency_bound_ns
        self._late = self._completed = 0
        known = rows.due_ns is None or len(rows.due_ns) >= plan.query_count
        judged = known and not plan.accuracy and self._bound_ns is not None
        self._most = most_late(plan) if judged and most_late is not None else None

    def check(self) -> None:
        """Raises RunHopeless if too many queries are late and the run is not over."""
        plan = self._plan
        if self._most is None or self._rows.journal.completed >= plan.planned_samples:
            return
        late = self.count()
        if late > self._most:
            raise RunHopeless(
                f"ended early: {late:,} of {plan.query_count:,} queries have already taken longer than "
                f"{show_ns(self._bound_ns or 0)}, but only {self._most:,} may"
            )

    def count(self) -> int:
        """Returns the number of late queries so far, including overdue queries without an answer."""
        now_ns = wall_ns()
        for rows in self._rows.read():
            samples = self._rows.samples(rows)
            spent_ns = samples.query_latency_ns(self._plan.samples_per_query)
            self._completed += len(spent_ns)
            self._late += int((spent_ns > self._bound_ns).sum())
        return self._late + self._overdue(now_ns)

    def _overdue(self, now_ns: int) -> int:
        """Returns the minimum number of unanswered queries whose latency already exceeds the bound at `now_ns`."""
        due_ns, start_ns = self._rows.due_ns, self._rows.start_ns
        if due_ns is None or start_ns is None or self._bound_ns is None:
            return 0
        before_ns = now_ns - start_ns - self._bound_ns - UNSEEN_NS
        due = int(np.searchsorted(due_ns[: self._plan.query_count], before_ns))
        return max(0, due - self._completed - self._rows.cancelled)
