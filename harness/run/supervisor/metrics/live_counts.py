"""Counts a run's queries, samples, stages and failures for Prometheus and `browse`.

Each `read` counts only new rows, so a scrape late in a run costs no more than an early scrape. The endpoint reads once
per second, for the run's course; with --no-metrics, all rows are counted at the end of the run.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.core.clock import wall_ns
from harness.core.otlp.boundaries import SECONDS_NS, TOKENS
from harness.models.cache.cache import ORIGINS
from harness.results.evidence.stages import edges_of
from harness.run.journal import JournalReader
from harness.run.supervisor.completions import NewRows, Samples
from harness.run.supervisor.metrics.histogram import Histogram
from harness.types import Array

BUCKETS_PER_DECADE = 20
EDGES_NS: Array = np.array(
    [round(float(f"{10 ** (n / BUCKETS_PER_DECADE):.3g}") * 1e4) for n in range(141)], np.int64
)
"""Inclusive upper edges from 10 us to 100 s, rounded to three digits. Each edge is 12 % above the previous edge."""

BATCH_EDGES: Array = 2 ** np.arange(17)
"""Upper edges in samples: 1, 2, 4, ... 65,536."""


class OfNode:
    """Counts one node's answers."""

    def __init__(self) -> None:
        self.completed = self.failed = 0
        """Number of completed samples, and number of failed samples."""
        self.requests = Histogram(EDGES_NS)
        """Times from sending a batch to receiving its answer."""


class LiveCounts:
    """Counts of one LoadGen run. The class is not thread-safe, so `Exporter` holds a lock."""

    def __init__(self, rows: NewRows, nodes: Sequence[str] = (), *, has_wide: bool = False) -> None:
        """nodes: addresses, indexed by the rows' `server`. has_wide: whether the last worker is the wide instance."""
        self.nodes = {node: OfNode() for node in nodes}
        self.plan = rows.plan
        self.workers = rows.journal.workers - has_wide
        self._has_wide = has_wide
        self.latency = Histogram(EDGES_NS)
        edges = edges_of(rows.journal.stamps)
        self.stages = {stage: Histogram(EDGES_NS) for stage in edges}
        self._edges = [*edges.items()][2:]
        self.is_cached = "origin" in rows.journal.stamps
        self.origins: Array = np.zeros(len(ORIGINS), np.int64)
        """For a set of models, the number of samples per model origin, in the order of ORIGINS."""
        self.evictions = 0
        self._is_remote = "tokens" in rows.journal.stamps
        self.batches = Histogram(BATCH_EDGES)
        self.token_times = {time: Histogram(EDGES_NS) for time in ("ttft", "tpot")}
        """Token times of a language model's streams."""
        self.operations = {
            "duration": Histogram(SECONDS_NS),
            "failed": Histogram(SECONDS_NS),
            "first": Histogram(SECONDS_NS),
            "tokens": Histogram(TOKENS),
        }
        """Histograms of a language model's answers with OpenTelemetry's bucket boundaries: latency, latency of
        failures, TTFT and tokens.
        """
        self.tokens = 0
        """Number of tokens in a language model's answers."""
        self.issued = self.completed = self.failed = self.failed_queries = 0
        self.cancelled = 0
        """Number of requests that the client cancelled."""
        self.busy_ns = self.queued = self.last_completed_ns = 0
        self.scheduled_queries = 0
        self.start_ns: int | None = None
        self.about: Mapping[str, object] = {}
        """OpenTelemetry's attributes of a language model and its server."""
        self._rows: NewRows | None = rows
        # The batch that was taken last: the end of its samples, and the time at which it was taken.
        self._newest = (0, 0)
        self._last_failed_query = -1

    def queries(self, samples: int) -> int:
        return samples // self.plan.samples_per_query

    @property
    def in_flight(self) -> int:
        """Number of samples issued but not yet answered."""
        return self.issued - self.completed - self.cancelled

    @property
    def progress(self) -> float:
        """Share of the planned samples that are answered or cancelled."""
        return min(1.0, (self.completed + self.cancelled) / max(1, self.plan.planned_samples))

    @property
    def per_second(self) -> float | None:
        """Rate of completed queries, from the first scheduled time to the last completion so far."""
        took_ns = self.last_completed_ns - (self.start_ns or 0)
        return self.queries(self.completed) * 1e9 / took_ns if self.completed and took_ns else None

    def read(self) -> None:
        """Counts new rows; does nothing after `finish`."""
        cursor = self._rows
        if cursor is None:
            return
        for rows in cursor.read():
            is_wide = self._has_wide and cursor.worker == self.workers
            self._count(rows, cursor.samples(rows), self.workers if is_wide else 1)
        self.cancelled = cursor.cancelled
        self.start_ns = cursor.start_ns
        # The number of issued samples is read after the rows, so that it is at least the number of completed samples.
        self.issued = cursor.journal.issued
        self._look_at_queue(cursor.journal, cursor.due_ns)

    def finish(self) -> None:
        """Counts the last rows after the run and releases the journal."""
        self.read()
        self._rows = None
        self.scheduled_queries = max(self.scheduled_queries, self.queries(self.issued))

    def _count(self, rows: Array, samples: Samples, occupied: int) -> None:
        """Counts the samples of some rows. occupied: number of instances that each of these batches keeps busy."""
        size, entry_ns = samples.size, samples.entry_ns
        stages = self.stages
        stages["issue_delay"].add(entry_ns - samples.scheduled_ns)
        stages["queue"].add(np.repeat(rows["taken_ns"], size) - entry_ns)
        for stage, (before, after) in self._edges:
            stages[stage].add(rows[after] - rows[before], size)
        self.batches.add(size)
        self._count_nodes(rows, size)
        self.completed += len(samples.order)
        per_query = self.plan.samples_per_query
        self.latency.add(samples.query_latency_ns(per_query))
        self._count_failures(rows, size, per_query)
        if self._is_remote and (
            self.tokens or rows["tokens"].any() or rows["first_token_ns"].any()
        ):
            self._count_tokens(rows, samples.scheduled_ns[np.cumsum(size) - size])
        if self.is_cached:
            known = np.clip(rows["origin"], 0, len(ORIGINS) - 1)
            self.origins += np.bincount(known, minlength=len(ORIGINS))
            self.evictions += int(rows["evicted"].sum())
        busy_ns = int((rows["completed_ns"] - rows["taken_ns"]).sum())
        self.busy_ns += max(0, occupied * busy_ns)
        self.last_completed_ns = max(self.last_completed_ns, int(rows["completed_ns"].max()))
        newest = int(rows["first"].argmax())
        end = int(rows["first"][newest]) + int(size[newest])
        self._newest = max(self._newest, (end, int(rows["taken_ns"][newest])))

    def _count_nodes(self, rows: Array, size: Array) -> None:
        if not self.nodes:
            return
        numbers = rows["server"]
        for number, node in enumerate(self.nodes.values()):
            mine = numbers == number
            own, samples = rows[mine], size[mine]
            whole = own["failed"] == 0
            node.completed += int(samples.sum())
            node.failed += int(samples[~whole].sum())
            node.requests.add((own["read_ns"] - own["sent_ns"])[whole])

    def _count_tokens(self, rows: Array, scheduled_ns: Array) -> None:
        """Counts the tokens of some rows.

        scheduled_ns: (rows,) due time of each row's first sample. The row of a stream has only one sample.
        """
        tokens, first_ns = rows["tokens"].astype(np.int64), rows["first_token_ns"]
        self.tokens += int(tokens.sum())
        streamed = first_ns > 0
        right = rows["failed"] == 0
        spent_ns = rows["completed_ns"] - scheduled_ns
        self.operations["duration"].add(spent_ns[right])
        self.operations["failed"].add(spent_ns[~right])
        self.operations["first"].add((first_ns - scheduled_ns)[streamed & right])
        self.operations["tokens"].add(tokens[right & (tokens > 0)])
        self.token_times["ttft"].add((first_ns - scheduled_ns)[streamed])
        several = streamed & (tokens > 1)
        spent_ns = (rows["completed_ns"] - first_ns)[several]
        self.token_times["tpot"].add(spent_ns // (tokens[several] - 1))

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

    def _look_at_queue(self, journal: JournalReader, due_ns: Array | None) -> None:
        """Counts the queries due so far, and the samples that still waited after the newest batch was taken."""
        issued = self.issued
        end, taken_ns = self._newest
        entered = int(np.searchsorted(journal.entry_ns[:issued], taken_ns, side="right"))
        self.queued = max(0, min(entered - end, issued - self.completed - self.cancelled))
        scheduled = self.queries(issued)
        if due_ns is not None and self.start_ns is not None and not self.plan.model_key:
            after_ns = wall_ns() - self.start_ns
            due = np.searchsorted(due_ns[: self.plan.query_count], after_ns, side="right")
            scheduled = max(scheduled, int(due))
        self.scheduled_queries = max(self.scheduled_queries, scheduled)
