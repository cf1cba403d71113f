"""What the journal says while the run goes on: read at any time, for progress and the watchdog."""

from dataclasses import dataclass

import numpy as np

from harness.core.clock import monotonic_ns, wall_ns
from harness.loadgen.plan import LoadPlan
from harness.loadgen.schedule import planned_ns
from harness.run.journal import Journal
from harness.types import Array

_BUCKETS_PER_DECADE = 40
_EDGES_NS = 10 ** np.arange(3, 12 + 1e-9, 1 / _BUCKETS_PER_DECADE)
"""Upper edges of the latency histogram, 1 us to 1000 s: a running percentile within 6 %."""


@dataclass(frozen=True, slots=True)
class Now:
    """samples issued and completed; p99_ns None before the first; idle_ns since the last row;
    loading_ns since LoadGen began to wait for samples to be loaded, also before the first query.
    """

    issued: int
    completed: int
    failed: int
    p99_ns: float | None
    idle_ns: int
    loading_ns: int = 0

    @property
    def waiting(self) -> int:
        return self.issued - self.completed


class Watcher:
    """Reads only what is new at each `look`. Not thread-safe."""

    def __init__(self, journal: Journal, plan: LoadPlan) -> None:
        self._journal = journal
        self._seen = [0] * journal.workers
        self._histogram = np.zeros(len(_EDGES_NS) + 1, np.int64)
        self._failed = 0
        self._last_count = (-1, False)
        self._last_change_ns = self._loading_since_ns = monotonic_ns()
        self._after_ns = planned_ns(plan, min(plan.journal_samples, 20_000_000))
        self._official = plan.model_key is not None  # its number of queries is not known before
        self._all_samples = plan.query_count * plan.samples_per_query
        self._start_ns: int | None = None

    @property
    def after_ns(self) -> Array | None:
        """(queries,) Server's schedule, ns after its start; None where none is known."""
        return self._after_ns

    def look(self) -> Now:
        issued, completed = self._journal.issued, self._journal.completed
        now_ns = monotonic_ns()
        loading = not issued or self._journal.loading
        if not loading or completed != self._last_count[0]:  # a set may pass between two looks
            self._loading_since_ns = now_ns
        # Idle counts only while something is due: between sparse queries nothing hangs.
        pending = not loading and (issued > completed or self._is_due(issued, completed))
        state = (completed, pending)
        if state != self._last_count:
            self._last_count, self._last_change_ns = state, now_ns
        for worker in range(self._journal.workers):
            self._read(worker)
        idle_ns = now_ns - self._last_change_ns if pending else 0
        loading_ns = now_ns - self._loading_since_ns
        return Now(issued, completed, self._failed, self._p99_ns(), idle_ns, loading_ns)

    def still_loading(self) -> None:
        """The dataset has told how far it is."""
        self._loading_since_ns = monotonic_ns()

    def _is_due(self, issued: int, completed: int) -> bool:
        """LoadGen owes a query: a stopped process issues nothing, and must not look idle."""
        if not issued or self._official or completed >= self._all_samples:
            return False
        if self._after_ns is None or self._start_ns is None:
            return self._after_ns is None
        return completed < len(self._after_ns) and (
            self._start_ns + int(self._after_ns[completed]) < wall_ns()
        )

    def _read(self, worker: int) -> None:
        rows = self._journal.rows(worker, self._seen[worker])
        if not len(rows):
            return
        self._seen[worker] += len(rows)
        self._failed += int((rows["failed"] * rows["size"].astype(np.int64)).sum())
        # The first sample of a batch stands for all of it: it waited longest, and this is live.
        first = rows["first"]
        scheduled = self._journal.entry_ns[first]
        if self._after_ns is not None and int(first.max()) < len(self._after_ns):
            after = self._after_ns[first]
            start = self._journal.start_ns or int((scheduled - after).min())
            self._start_ns = start if self._start_ns is None else min(start, self._start_ns)
            scheduled = self._start_ns + after
        buckets = np.searchsorted(_EDGES_NS, rows["completed_ns"] - scheduled)
        np.add.at(self._histogram, buckets, rows["size"])

    def _p99_ns(self) -> float | None:
        total = int(self._histogram.sum())
        if not total:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._histogram), 0.99 * total))
        return float(_EDGES_NS[min(bucket, len(_EDGES_NS) - 1)])
