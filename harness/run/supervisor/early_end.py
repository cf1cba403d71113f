"""Ends a hopeless run early: counts the queries that are certainly late while the run goes on."""

from collections.abc import Callable

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS, show_ns
from harness.errors import RunHopeless
from harness.loadgen.plan import LoadPlan
from harness.run.supervisor.completions import NewRows

UNSEEN_NS = 100 * NS_PER_MS
"""A batch's row follows its answer: an answered query may look unanswered for this long."""


class LateLimit:
    """Reads only what is new at each `check`. Not thread-safe.

    Never counts too many: Server's start is taken as late as the queries seen so far allow.
    """

    def __init__(self, rows: NewRows, most_late: Callable[[LoadPlan], int] | None) -> None:
        """most_late: how many queries of a plan may be late; None where no run is ended early."""
        plan = rows.plan
        self._rows = rows
        self._plan = plan
        self._bound_ns = plan.latency_bound_ns
        self._late = self._completed = 0
        known = rows.due_ns is None or len(rows.due_ns) >= plan.query_count
        judged = known and not plan.accuracy and self._bound_ns is not None
        self._most = most_late(plan) if judged and most_late is not None else None

    def check(self) -> None:
        """RunHopeless once more queries are late than the limit allows and the run is not over."""
        plan = self._plan
        all_samples = plan.query_count * plan.samples_per_query
        if self._most is None or self._rows.journal.completed >= all_samples:
            return
        late = self.count()
        if late > self._most:
            raise RunHopeless(
                f"ended early: {late:,} of {plan.query_count:,} queries took longer than "
                f"{show_ns(self._bound_ns or 0)} already, {self._most:,} may"
            )

    def count(self) -> int:
        """Late queries so far; queries that still wait and are overdue are included."""
        now_ns = wall_ns()
        for rows in self._rows.read():
            samples = self._rows.samples(rows)
            spent_ns = samples.query_latency_ns(self._plan.samples_per_query)
            self._completed += len(spent_ns)
            self._late += int((spent_ns > self._bound_ns).sum())
        return self._late + self._overdue(now_ns)

    def _overdue(self, now_ns: int) -> int:
        """The least number of unanswered queries that were due longer than the bound before `now_ns`."""
        due_ns, start_ns = self._rows.due_ns, self._rows.start_ns
        if due_ns is None or start_ns is None or self._bound_ns is None:
            return 0
        before_ns = now_ns - start_ns - self._bound_ns - UNSEEN_NS
        due = int(np.searchsorted(due_ns[: self._plan.query_count], before_ns))
        return max(0, due - self._completed)
