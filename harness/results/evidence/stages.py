"""From a journal to one row a sample, and from those rows to stages and percentiles.

    scheduled -issue_delay-> entry -queue-> taken -gather-> gathered -infer-> inferred
              -postprocess-> postprocessed -complete-> completed

Per sample the six stages sum to the end-to-end latency.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.run.journal import Journal
from harness.loadgen.plan import LoadPlan
from harness.loadgen.schedule import (freed_ns, planned_ns)
from harness.core.stats import percentile_ns
from harness.types import Array

STAGES = ("issue_delay", "queue", "gather", "infer", "postprocess", "complete")
_EDGES = (
    "scheduled_ns",
    "entry_ns",
    "taken_ns",
    "gathered_ns",
    "inferred_ns",
    "postprocessed_ns",
    "completed_ns",
)
STAGE_EDGES = dict(zip(STAGES, pairwise(_EDGES), strict=True))
"""stage -> the columns it begins and ends at."""

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p97": 0.97, "p99": 0.99, "p99.9": 0.999}
"""LoadGen's."""


@dataclass(frozen=True, slots=True)
class Completions:
    """columns: name -> (n,) one entry a completed sample, in issue order.

    issued: samples LoadGen handed over. answered_once: each of those has exactly one row.
    """

    columns: Mapping[str, Array]
    issued: int
    answered_once: bool

    def __len__(self) -> int:
        return len(self.columns["order"])

    @property
    def latency_ns(self) -> Array:
        return self.columns["completed_ns"] - self.columns["scheduled_ns"]

    @property
    def failed(self) -> int:
        return int(self.columns["failed"].sum())


def read_completions(
    journal: Journal, plan: LoadPlan, shortest_ns: int | None = None
) -> Completions:
    """Everything the journal holds now; complete once the measured process has ended.

    shortest_ns: LoadGen's shortest latency, where it has one. The journal knows the schedule only
    up to its start, which lies before the first callback by what LoadGen needed to make the call.
    The fastest sample, the least disturbed of all, tells by how much; that shows as issue delay.
    """
    issued = journal.issued
    parts = [journal.rows(worker) for worker in range(journal.workers)]
    workers = np.repeat(np.arange(len(parts)), [len(p) for p in parts]).astype(np.int16)
    batches = np.concatenate(parts)
    sizes = batches["size"].astype(np.int64)
    total = int(sizes.sum())
    batch = np.repeat(np.arange(len(batches)), sizes)
    within = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = batches["first"].astype(np.int64)[batch] + within
    in_order = np.argsort(order, kind="stable")
    order, batch = order[in_order], batch[in_order]
    columns: dict[str, Array] = {
        "order": order,
        "index": journal.index[order],
        "entry_ns": journal.entry_ns[order],
        "worker": workers[batch],
        "batch": batch.astype(np.int32),
        "batch_size": batches["size"][batch],
        "failed": batches["failed"][batch],
    }
    columns |= {name: batches[name][batch] for name in _EDGES[2:]}
    if plan.harness_scheduled:
        columns["scheduled_ns"] = _known_ns(columns, journal.start_ns, plan)
    else:
        columns["scheduled_ns"] = _scheduled_ns(columns, issued, plan, shortest_ns)
    once = total == issued and bool((order == np.arange(total)).all())
    return Completions(columns, issued, once)


def _scheduled_ns(
    columns: Mapping[str, Array], issued: int, plan: LoadPlan, shortest_ns: int | None
) -> Array:
    """Streams and Offline are scheduled when they are issued; Server as its seed says."""
    entry_ns: Array = columns["entry_ns"]
    order: Array = columns["order"]
    if plan.accuracy or plan.scenario not in ("server", "offline") or not len(order):
        return entry_ns
    planned = planned_ns(plan, max(issued, int(order[-1]) + 1))
    after_ns: Array = planned[order] if planned is not None else np.zeros(len(order), np.int64)
    start_ns = int((entry_ns - after_ns).min())
    if shortest_ns is not None:
        start_ns = min(start_ns, int((columns["completed_ns"] - after_ns).min()) - shortest_ns)
    return after_ns + start_ns


def _known_ns(columns: Mapping[str, Array], start_ns: int, plan: LoadPlan) -> Array:
    """Of our own scheduler, whose start is known."""
    order: Array = columns["order"]
    if plan.concurrency is not None:
        freed = freed_ns(columns["completed_ns"], order, plan.concurrency, start_ns)
        # Of a run cut off the last answers may be missing, so that others seem to have freed a place.
        return np.minimum(freed, columns["entry_ns"])
    planned = planned_ns(plan, plan.query_count)
    assert planned is not None
    return planned[order] + start_ns


def query_latency_ns(done: Completions, samples_per_query: int) -> Array:
    """(queries,) a query is as late as its last sample. Whole queries only."""
    latency = done.latency_ns
    if samples_per_query == 1:
        return latency
    whole = len(latency) // samples_per_query * samples_per_query
    queries: Array = latency[:whole].reshape(-1, samples_per_query)
    longest: Array = queries.max(axis=1)
    return longest


def query_completed_ns(done: Completions, samples_per_query: int) -> Array:
    """(queries,) when each query of `query_latency_ns` was answered: with its last sample."""
    completed_ns: Array = done.columns["completed_ns"]
    whole = len(completed_ns) // samples_per_query * samples_per_query
    last: Array = completed_ns[:whole].reshape(-1, samples_per_query).max(axis=1)
    return last


def summarise(done: Completions) -> Mapping[str, Mapping[str, float]]:
    """stage -> p50 and p99 in ns, and its share of the time of all samples."""
    total = float(done.latency_ns.sum()) or 1.0
    summary: dict[str, Mapping[str, float]] = {}
    for stage, (begin, end) in STAGE_EDGES.items():
        spent = done.columns[end] - done.columns[begin]
        ordered = np.sort(spent)
        summary[stage] = {
            "p50": percentile_ns(ordered, 0.50),
            "p99": percentile_ns(ordered, 0.99),
            "share": float(spent.sum()) / total,
        }
    return summary


def percentiles(latency_ns: Array) -> Mapping[str, int]:
    """The same statistics LoadGen reports, from the journal."""
    ordered = np.sort(latency_ns)
    return {
        "min": int(ordered[0]),
        "max": int(ordered[-1]),
        "mean": int(ordered.mean()),
        **{name: percentile_ns(ordered, f) for name, f in PERCENTILES.items()},
    }
