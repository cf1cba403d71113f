"""Queries that are late for certain, counted while a run goes on: a search ends a run early by it."""

from collections.abc import Callable

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS, show_ns
from harness.errors import RunHopeless
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.types import Array

UNSEEN_NS = 100 * NS_PER_MS
"""A batch's row is written after its answer: so long an answered query may look unanswered."""


class LateLimit:
    """Reads only what is new at each `check`. Not thread-safe.

    Never counts too many: Server's start is taken as late as the queries seen so far allow.
    """

    def __init__(
        self,
        journal: Journal,
        plan: LoadPlan,
        after_ns: Array | None,
        most_late: Callable[[LoadPlan], int] | None,
    ) -> None:
        """after_ns: Server's schedule (`Watcher.after_ns`). most_late: None where none counts."""
        self._journal = journal
        self._plan = plan
        self._bound_ns = plan.latency_bound_ns
        self._after_ns = after_ns
        self._seen = [0] * journal.workers
        self._start_ns: int | None = None
        self._late = self._completed = 0
        known = after_ns is None or len(after_ns) >= plan.query_count
        judged = known and not plan.accuracy and self._bound_ns is not None
        self._most = most_late(plan) if judged and most_late is not None else None

    def check(self) -> None:
        """RunHopeless once more queries are late than may be, and there are more to come."""
        samples = self._plan.query_count * self._plan.samples_per_query
        if self._most is None or self._journal.completed >= samples:
            return
        late = self.count()
        if late > self._most:
            plan = self._plan
            raise RunHopeless(
                f"ended early: {late:,} of {plan.query_count:,} queries took longer than "
                f"{show_ns(self._bound_ns or 0)} already, {self._most:,} may"
            )

    def count(self) -> int:
        """So far, queries that still wait and are overdue included."""
        now_ns = wall_ns()
        for worker in range(self._journal.workers):
            rows = self._journal.rows(worker, self._seen[worker])
            if len(rows):
                self._seen[worker] += len(rows)
                self._read(rows)
        return self._late + self._overdue(now_ns)

    def _read(self, rows: Array) -> None:
        size = rows["size"].astype(np.int64)
        starts = rows["first"].astype(np.int64) - (np.cumsum(size) - size)
        order = np.arange(int(size.sum())) + np.repeat(starts, size)
        scheduled_ns = self._journal.entry_ns[order]
        if self._after_ns is not None:
            after_ns = self._after_ns[order]
            start_ns = int((scheduled_ns - after_ns).min())
            self._start_ns = min(start_ns, self._start_ns or start_ns)
            scheduled_ns = after_ns + self._start_ns
        ends = (order + 1) % self._plan.samples_per_query == 0  # a query is as late as its last one
        spent_ns = (np.repeat(rows["completed_ns"], size) - scheduled_ns)[ends]
        self._completed += len(spent_ns)
        self._late += int((spent_ns > self._bound_ns).sum())

    def _overdue(self, now_ns: int) -> int:
        """At least so many were due longer than the bound before `now_ns`, and had no answer then."""
        if self._after_ns is None or self._start_ns is None or self._bound_ns is None:
            return 0
        due_ns = now_ns - self._start_ns - self._bound_ns - UNSEEN_NS
        due = int(np.searchsorted(self._after_ns[: self._plan.query_count], due_ns))
        return max(0, due - self._completed)
