"""Computes stages and percentiles from the journal's rows, one row per sample.

    scheduled -issue_delay-> entry -queue-> taken -gather-> gathered -infer-> inferred
              -postprocess-> postprocessed -complete-> completed

If a server answers instead of a local model:

    scheduled -issue_delay-> entry -queue-> taken -send-> sent -remote-> arrived -notice-> read
              -decode-> decoded -complete-> completed

If the run uses a cache of models:

    ... -gather-> gathered -acquire-> acquired -infer-> inferred -postprocess-> ...

If nodes answer, `remote` consists of:

    sent -network-> received -node_queue-> node_taken -gather-> gathered -infer-> inferred
         -postprocess-> postprocessed -reply-> arrived

Only differences between times on the same clock are used, so clock offsets do not matter. `network` is the time between
sending and arrival that the node's stages do not cover. It includes both directions.

`arrived` is the kernel's timestamp. Without this timestamp, and over gRPC, the stage `notice` is missing, and `remote`
includes its time. The stages of a sample add up to its end-to-end latency.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.core.stats import percentile_ns
from harness.loadgen.scenario import scenario_named
from harness.results.schema.performance import Stage
from harness.types import Array

LOCAL_STAMPS = (
    "scheduled_ns",
    "entry_ns",
    "taken_ns",
    "gathered_ns",
    "inferred_ns",
    "postprocessed_ns",
    "completed_ns",
)
REMOTE_STAMPS = (
    "scheduled_ns",
    "entry_ns",
    "taken_ns",
    "sent_ns",
    "arrived_ns",
    "read_ns",
    "decoded_ns",
    "completed_ns",
)

CACHED_STAMPS = (*LOCAL_STAMPS[:4], "acquired_ns", *LOCAL_STAMPS[4:])

LOCAL_STAGES = ("issue_delay", "queue", "gather", "infer", "postprocess", "complete")
REMOTE_STAGES = ("issue_delay", "queue", "send", "remote", "notice", "decode", "complete")
CACHED_STAGES = (*LOCAL_STAGES[:3], "acquire", *LOCAL_STAGES[3:])
NODE_STAGES = ("network", "node_queue", "gather", "infer", "postprocess", "reply")
NODE_STAMPS = ("received_ns", "node_taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns")
"""Columns in runs on nodes, converted to the driver's clock. The stage `reply` ends when the reply arrives."""

STAGES = tuple(dict.fromkeys([*CACHED_STAGES[:-1], *REMOTE_STAGES, *NODE_STAGES]))
"""Every stage that a run can have."""

Edges = Mapping[str, tuple[str, str]]
"""Maps a stage to the columns that contain its start and end."""

_LOCAL: Edges = dict(zip(LOCAL_STAGES, pairwise(LOCAL_STAMPS), strict=True))
_REMOTE: Edges = dict(zip(REMOTE_STAGES, pairwise(REMOTE_STAMPS), strict=True))
_CACHED: Edges = dict(zip(CACHED_STAGES, pairwise(CACHED_STAMPS), strict=True))
_UNSTAMPED: Edges = {
    **{name: edge for name, edge in _REMOTE.items() if name != "notice"},
    "remote": ("sent_ns", "read_ns"),
}


def edges_of(columns: Container[str]) -> Edges:
    """Returns the run's stages in order, derived from its column names."""
    if "sent_ns" not in columns:
        return _CACHED if "acquired_ns" in columns else _LOCAL
    edges = _REMOTE if "arrived_ns" in columns else _UNSTAMPED
    return _with_nodes(edges) if NODE_STAMPS[0] in columns else edges


def _with_nodes(edges: Edges) -> Edges:
    """Replaces `remote` with the stages of the nodes."""
    begin, end = edges["remote"]
    own = dict(zip(NODE_STAGES, pairwise((begin, *NODE_STAMPS, end)), strict=True))
    parts = [own if name == "remote" else {name: edge} for name, edge in edges.items()]
    return {name: edge for part in parts for name, edge in part.items()}


PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p97": 0.97, "p99": 0.99, "p99.9": 0.999}
"""Percentiles that LoadGen reports."""


def reported_percentile(percentile: float, known: Mapping[str, float] = PERCENTILES) -> str:
    """Returns the name of the first percentile in `known` that is at least `percentile`; if all are lower, returns the
    name of the highest one.

    percentile: in (0, 1). known: percentiles in ascending order.
    """
    return next((n for n, share in known.items() if share >= percentile - 1e-9), [*known][-1])


@dataclass(frozen=True, slots=True)
class Completions:
    """Completed samples in a run."""

    columns: Mapping[str, Array]
    """Maps a name to (n,) values, one per completed sample, in the order of issue."""
    issued: int
    """Number of samples that LoadGen issued."""
    answered_once: bool
    """Whether each issued sample has exactly one row."""
    cancelled: Mapping[str, Array] | None = None
    """Columns for requests that the client cancelled, which `columns` leaves out. None without --cancel."""
    before: Mapping[str, Array] | None = None
    """Columns for queries before the last hold of a ramp, which `columns` leaves out. None without a ramp."""

    @property
    def left_out(self) -> int:
        """Number of completed samples that `columns` leaves out."""
        return len(self.all_completed_ns) - len(self)

    @property
    def all_completed_ns(self) -> Array:
        """Completion times of all samples, including samples that `columns` leaves out."""
        parts = (self.columns, self.cancelled, self.before)
        return np.concatenate([part["completed_ns"] for part in parts if part is not None])

    def __len__(self) -> int:
        return len(self.columns["order"])

    @property
    def latency_ns(self) -> Array:
        return self.columns["completed_ns"] - self.columns["scheduled_ns"]

    @property
    def batch_size(self) -> Array:
        """(n,) size of each sample's batch. A forged journal may contain 0, which counts as 1."""
        return np.maximum(self.columns["batch_size"], 1)

    @property
    def edges(self) -> Edges:
        return edges_of(self.columns)

    def spent_ns(self, stage: str) -> Array:
        """(n,) time that each sample spent in a stage of `edges`."""
        begin, end = self.edges[stage]
        spent: Array = self.columns[end] - self.columns[begin]
        return spent

    @property
    def is_remote(self) -> bool:
        """Whether a server answered."""
        return "sent_ns" in self.columns

    @property
    def answer_edge(self) -> tuple[str, str]:
        """Columns with the start and the end of the time in which the model or a server answers. If a server answers,
        this time includes the network.
        """
        if not self.is_remote:
            return self.edges["infer"]
        return "sent_ns", "arrived_ns" if "arrived_ns" in self.columns else "read_ns"

    @property
    def generates(self) -> bool:
        """Whether a language model on this machine answered, in which case a worker processes many samples at once."""
        return "tokens" in self.columns and not self.is_remote

    @property
    def failed(self) -> int:
        return int(self.columns["failed"].sum())


def waits_of_all(scenario: str) -> Sequence[str]:
    """Returns the stages that only reflect the number of samples, because all samples are issued at once."""
    return ("issue_delay", "queue") if scenario_named(scenario).all_at_once else ()


def query_latency_ns(done: Completions, samples_per_query: int) -> Array:
    """Returns the (queries,) latency of the last sample in each complete query."""
    latency = done.latency_ns
    if samples_per_query == 1:
        return latency
    whole = len(latency) // samples_per_query * samples_per_query
    queries: Array = latency[:whole].reshape(-1, samples_per_query)
    longest: Array = queries.max(axis=1)
    return longest


def query_completed_ns(done: Completions, samples_per_query: int) -> Array:
    """Returns the (queries,) times at which each query's last sample was answered. Only complete queries count."""
    completed_ns: Array = done.columns["completed_ns"]
    whole = len(completed_ns) // samples_per_query * samples_per_query
    last: Array = completed_ns[:whole].reshape(-1, samples_per_query).max(axis=1)
    return last


def summarise(done: Completions) -> Mapping[str, Stage]:
    """Returns a mapping from each stage to its p50 and p99 in ns, and to its share of the total time of all samples."""
    total = float(done.latency_ns.sum()) or 1.0
    summary: dict[str, Stage] = {}
    for stage in done.edges:
        spent = done.spent_ns(stage)
        ordered = np.sort(spent)
        summary[stage] = {
            "p50": percentile_ns(ordered, 0.50),
            "p99": percentile_ns(ordered, 0.99),
            "share": float(spent.sum()) / total,
        }
    return summary


def percentiles(latency_ns: Array) -> Mapping[str, int]:
    """Computes LoadGen's latency statistics from the journal."""
    ordered = np.sort(latency_ns)
    return {
        "min": int(ordered[0]),
        "max": int(ordered[-1]),
        "mean": int(ordered.mean()),
        **{name: percentile_ns(ordered, f) for name, f in PERCENTILES.items()},
    }


def covered_ns(begin_ns: Array, end_ns: Array, worker: Array) -> int:
    """Returns the total time in ns during which at least one sample was being processed, summed over the workers. All
    arguments: (n,).
    """
    covered_ns = 0
    for each in np.unique(worker):
        order = np.argsort(begin_ns[worker == each])
        begins, ends = begin_ns[worker == each][order], end_ns[worker == each][order]
        until = np.maximum.accumulate(ends)
        covered_ns += int((ends[:1] - begins[:1]).sum())
        covered_ns += int((until[1:] - np.maximum(begins[1:], until[:-1])).clip(0).sum())
    return covered_ns
