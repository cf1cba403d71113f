"""Completed samples from the journal's rows: when each was scheduled, taken, inferred and completed."""

from collections.abc import Mapping

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.loadgen.schedule import freed_ns, planned_ns
from harness.results.evidence.stages import STAMPS, Completions
from harness.run.journal import Journal
from harness.types import Array


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
    columns |= {name: batches[name][batch] for name in STAMPS[2:]}
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
