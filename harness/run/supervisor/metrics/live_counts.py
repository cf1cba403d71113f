"""What the journal says while the run goes on, counted for Prometheus: read when somebody asks.

Each `read` counts only what is new since the last one, so that it costs the same early and late in
a run, and a run that nobody scrapes pays for it once, at its end.
"""

import numpy as np

from harness.core.clock import wall_ns
from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import STAGES
from harness.run.journal import Journal
from harness.types import Array

BUCKETS_PER_DECADE = 20
EDGES_NS: Array = np.array(
    [round(float(f"{10 ** (n / BUCKETS_PER_DECADE):.3g}") * 1e4) for n in range(141)], np.int64
)
"""Upper edges, inclusive: 10 us to 100 s, each 12 % above the last and of three digits."""

BATCH_EDGES: Array = 2 ** np.arange(17)
"""Samples: 1, 2, 4, ... 65,536."""

_SAMPLES_AT_ONCE = 200_000
"""Of one step, some ms: other threads of the supervisor get their turn in between."""


class Histogram:
    """counts: (edges + 1,) how many values lie at or below each edge and above the one before."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.counts: Array = np.zeros(len(edges) + 1, np.int64)
        self.sum = 0

    def add(self, values: Array, times: Array | None = None) -> None:
        """values: (n,) integers, below zero only where a clock was stepped. times: (n,) each."""
        values = np.maximum(values, 0).astype(np.int64)
        buckets = np.searchsorted(self.edges, values)
        found = np.bincount(buckets, times, len(self.counts))
        self.counts += found.astype(np.int64)
        self.sum += int(values.sum() if times is None else (values * times).sum())

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, fraction: float) -> float | None:
        """Within its bucket as if the logarithms of the values were spread evenly; None if empty.

        The value LoadGen would give, sorted[floor(n * fraction)], lies in the same bucket.
        """
        total = self.total
        if not total:
            return None
        place = int(total * fraction)
        ends = np.cumsum(self.counts)
        bucket = int(np.searchsorted(ends, place, side="right"))
        last = len(self.edges) - 1
        if bucket > last:
            return float(self.edges[last])
        high = float(self.edges[bucket])
        low = float(self.edges[bucket - 1]) if bucket else high / 10
        before = int(ends[bucket - 1]) if bucket else 0
        share = (place - before + 0.5) / int(self.counts[bucket])
        return float(low * (high / low) ** share)


class Tally:
    """The counts of one LoadGen run. Not thread-safe: `Exporter` holds a lock."""

    def __init__(self, journal: Journal, plan: LoadPlan, after_ns: Array | None) -> None:
        """after_ns: Server's schedule (`Watcher.after_ns`); None where none is recomputed."""
        self.plan = plan
        self.workers = journal.workers
        self.latency = Histogram(EDGES_NS)
        self.stages = {stage: Histogram(EDGES_NS) for stage in STAGES}
        self.batches = Histogram(BATCH_EDGES)
        self.issued = self.completed = self.failed = self.failed_queries = 0
        self.busy_ns = self.queued = self.last_completed_ns = 0
        self.scheduled_queries = 0
        self.start_ns: int | None = None
        self._journal: Journal | None = journal
        self._after_ns = after_ns
        self._seen = [0] * journal.workers
        self._newest = (0, 0)  # of the batch taken last: the end of its samples, when it was taken
        self._last_failed_query = -1

    @property
    def planned_samples(self) -> int:
        plan = self.plan
        return plan.total_count if plan.accuracy else plan.query_count * plan.samples_per_query

    def queries(self, samples: int) -> int:
        return samples // self.plan.samples_per_query

    @property
    def per_second(self) -> float | None:
        """Queries completed, from the first one's scheduled time to the last completion so far."""
        took_ns = self.last_completed_ns - (self.start_ns or 0)
        return self.queries(self.completed) * 1e9 / took_ns if self.completed and took_ns else None

    def read(self) -> None:
        """Count what is new; nothing after `finish`."""
        journal = self._journal
        if journal is None:
            return
        self.start_ns = self.start_ns or journal.start_ns or None
        completed = 0
        for worker in range(journal.workers):
            rows = journal.rows(worker, self._seen[worker])
            self._seen[worker] += len(rows)
            start = 0
            while start < len(rows):
                count = max(1, _SAMPLES_AT_ONCE // int(rows["size"][start : start + 1000].max()))
                part = rows[start : start + min(count, 1000)]
                self._count(journal, part)
                completed += int(part["size"].sum())
                start += len(part)
        self.completed += completed
        self.issued = journal.issued  # after the rows: never below what was completed
        self._look_at_queue(journal)

    def finish(self) -> None:
        """The run has ended, however it did: the last counts; the journal is let go."""
        self.read()
        self._journal = self._after_ns = None
        self.scheduled_queries = max(self.scheduled_queries, self.queries(self.issued))

    def _count(self, journal: Journal, rows: Array) -> None:
        size = rows["size"].astype(np.int64)
        first = rows["first"].astype(np.int64)
        order = np.arange(int(size.sum())) + np.repeat(first - (np.cumsum(size) - size), size)
        entry_ns = journal.entry_ns[order]
        scheduled_ns = self._scheduled_ns(order, entry_ns)
        stages = self.stages
        stages["issue_delay"].add(entry_ns - scheduled_ns)
        stages["queue"].add(np.repeat(rows["taken_ns"], size) - entry_ns)
        stages["gather"].add(rows["gathered_ns"] - rows["taken_ns"], size)
        stages["infer"].add(rows["inferred_ns"] - rows["gathered_ns"], size)
        stages["postprocess"].add(rows["postprocessed_ns"] - rows["inferred_ns"], size)
        stages["complete"].add(rows["completed_ns"] - rows["postprocessed_ns"], size)
        self.batches.add(size)
        # A query of several samples (multi-stream) is answered in order: with its last sample.
        per_query = self.plan.samples_per_query
        ends = (order + 1) % per_query == 0
        self.latency.add((np.repeat(rows["completed_ns"], size) - scheduled_ns)[ends])
        self._count_failures(rows, size, per_query)
        self.busy_ns += max(0, int((rows["completed_ns"] - rows["taken_ns"]).sum()))
        self.last_completed_ns = max(self.last_completed_ns, int(rows["completed_ns"].max()))
        newest = int(first.argmax())
        end = int(first[newest] + size[newest])
        self._newest = max(self._newest, (end, int(rows["taken_ns"][newest])))

    def _count_failures(self, rows: Array, size: Array, per_query: int) -> None:
        failed = rows["failed"] > 0
        if not failed.any():
            return
        samples = int(size[failed].sum())
        self.failed += samples
        if per_query == 1:
            self.failed_queries += samples
            return
        queries = np.unique(rows["first"][failed] // per_query)
        self.failed_queries += int((queries != self._last_failed_query).sum())
        self._last_failed_query = int(queries[-1])

    def _scheduled_ns(self, order: Array, entry_ns: Array) -> Array:
        """As harness/results/evidence/stages.py, with the start as it is known by now: the earliest one seen."""
        known = self._after_ns
        if known is None or int(order.max()) >= len(known):
            self._started(int(entry_ns.min()))
            return entry_ns
        scheduled_ns: Array = known[order]
        scheduled_ns += self._started(int((entry_ns - scheduled_ns).min()))
        return scheduled_ns

    def _started(self, ns: int) -> int:
        self.start_ns = ns if self.start_ns is None else min(ns, self.start_ns)
        return self.start_ns

    def _look_at_queue(self, journal: Journal) -> None:
        """What waited just after the newest batch was taken; what is due is scheduled."""
        issued = self.issued
        end, taken_ns = self._newest
        entered = int(np.searchsorted(journal.entry_ns[:issued], taken_ns, side="right"))
        self.queued = max(0, min(entered - end, issued - self.completed))
        scheduled = self.queries(issued)
        if self._after_ns is not None and self.start_ns is not None and not self.plan.model_key:
            due = self._after_ns[: self.plan.query_count]
            scheduled = max(
                scheduled, int(np.searchsorted(due, wall_ns() - self.start_ns, side="right"))
            )
        self.scheduled_queries = max(self.scheduled_queries, scheduled)
