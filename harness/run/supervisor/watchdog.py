"""Watches a run for hangs, and computes the numbers of its progress line."""

from dataclasses import dataclass

import numpy as np

from harness.core.clock import monotonic_ns, wall_ns
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.metrics.histogram import Histogram

_BUCKETS_PER_DECADE = 40
_EDGES_NS = 10 ** np.arange(2, 12 + 1e-9, 1 / _BUCKETS_PER_DECADE)
"""The histogram's edges, from 100 ns to 1000 s. With these edges, the running percentile is accurate to 6 %."""


@dataclass(frozen=True, slots=True)
class Now:
    """State of a run at one observation."""

    issued: int
    """Number of samples that LoadGen has issued."""
    completed: int
    """Number of samples that were answered or have failed."""
    failed: int
    """Number of samples in failed batches."""
    p99_ns: float | None
    """99th percentile of the samples' latency so far; None before the first completion."""
    idle_ns: int
    """Time for which no sample has completed although a query is waiting or overdue."""
    loading_ns: int = 0
    """Time for which LoadGen has waited for samples to be loaded, including the time before the first query."""
    finished_ns: int = 0
    """Time since the last completion if all planned samples are answered and no sample is waiting; otherwise 0."""

    @property
    def waiting(self) -> int:
        return self.issued - self.completed


class Watchdog:
    """Watches a run. Each `look` reads only new rows. This class is not thread-safe."""

    def __init__(self, rows: NewRows) -> None:
        plan = rows.plan
        self.rows = rows
        self._journal = rows.journal
        self._latency = Histogram(_EDGES_NS)
        self._failed = 0
        self._last_state = (-1, False)
        self._last_change_ns = self._loading_since_ns = monotonic_ns()
        self.looks: list[tuple[int, int]] = []
        """Pairs (wall clock in ns, number of answered samples), one per look. The looks are evidence that the measured
        process does not supply.
        """
        # only LoadGen knows the number of queries of an official run
        self._official = plan.model_key is not None
        self._all_samples = plan.planned_samples

    def look(self) -> Now:
        # `completed` is read first, because a sample may be issued and completed between the two reads.
        completed, issued = self._journal.completed, self._journal.issued
        self.looks.append((wall_ns(), completed))
        now_ns = monotonic_ns()
        loading = not (issued or self._journal.start_ns) or self._journal.loading
        # A whole sample set may be loaded and answered between two observations.
        if not loading or completed != self._last_state[0]:
            self._loading_since_ns = now_ns
        # Idle time counts only while a query is due, because a gap between sparse queries is not a hang.
        pending = not loading and (issued > completed or self._is_due(issued, completed))
        state = (completed, pending)
        if state != self._last_state:
            self._last_state, self._last_change_ns = state, now_ns
        self._count_new()
        still_ns = now_ns - self._last_change_ns
        finished = completed >= self._all_samples and issued == completed
        return Now(
            issued,
            completed,
            self._failed,
            p99_ns=self._latency.quantile(0.99),
            idle_ns=still_ns if pending else 0,
            loading_ns=now_ns - self._loading_since_ns,
            finished_ns=still_ns if finished else 0,
        )

    def still_loading(self) -> None:
        """Records that the measured process has reported progress in loading."""
        self._loading_since_ns = monotonic_ns()

    def _is_due(self, issued: int, completed: int) -> bool:
        """Returns whether a query is overdue. A stopped process issues no queries, so an overdue query must count as a
        hang.
        """
        if (
            not (issued or self._journal.start_ns)
            or self._official
            or completed >= self._all_samples
        ):
            return False
        due_ns, start_ns = self.rows.due_ns, self.rows.start_ns
        if due_ns is None or start_ns is None:
            return due_ns is None
        return completed < len(due_ns) and start_ns + int(due_ns[completed]) < wall_ns()

    def _count_new(self) -> None:
        for rows in self.rows.read():
            self._failed += int((rows["failed"] * rows["size"].astype(np.int64)).sum())
            # The first sample of a batch, which waited longest, represents the batch. This approximation is precise
            # enough for a live display.
            first = rows["first"]
            scheduled_ns = self.rows.scheduled_ns(first, self._journal.entry_ns[first])
            self._latency.add(rows["completed_ns"] - scheduled_ns, rows["size"])
