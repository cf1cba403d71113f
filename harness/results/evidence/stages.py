"""From a journal to one row a sample, and from those rows to stages and percentiles.

    scheduled -issue_delay-> entry -queue-> taken -gather-> gathered -infer-> inferred
              -postprocess-> postprocessed -complete-> completed

Per sample the six stages sum to the end-to-end latency.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.core.stats import percentile_ns
from harness.results.schema import Stage
from harness.types import Array

STAGES = ("issue_delay", "queue", "gather", "infer", "postprocess", "complete")
STAMPS = (
    "scheduled_ns",
    "entry_ns",
    "taken_ns",
    "gathered_ns",
    "inferred_ns",
    "postprocessed_ns",
    "completed_ns",
)


STAGE_EDGES = dict(zip(STAGES, pairwise(STAMPS), strict=True))
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


def summarise(done: Completions) -> Mapping[str, Stage]:
    """stage -> p50 and p99 in ns, and its share of the time of all samples."""
    total = float(done.latency_ns.sum()) or 1.0
    summary: dict[str, Stage] = {}
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
