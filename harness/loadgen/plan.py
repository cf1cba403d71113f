"""Defines the load plan: every setting of LoadGen for one run, decided before the first query."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, NamedTuple

from harness.core.units import counted
from harness.types import TensorSpec

MIN_DURATION_MS = 600_000
"""The shortest official performance run (mlperf.conf, *.*.min_duration)."""

ONE_PASS = ("e2e-rag-qna", "e2e-rag-db")
"""LoadGen's keys of benchmarks whose runs are a single pass over the data, without a minimum duration.
Source: mlcommons/inference b66003e, e2e-rag/user.conf.
"""


def least_duration_ms(model_key: str | None) -> int:
    """Returns the minimum duration of an official performance run of a benchmark."""
    return 0 if model_key in ONE_PASS else MIN_DURATION_MS


class Seeds(NamedTuple):
    qsl: int
    sample_index: int
    schedule: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Settings of one run. With `schedule`, `concurrency`, `streams`, `sessions` or `load_hosts`, the harness's
    scheduler replaces LoadGen.
    """

    scenario: str
    accuracy: bool
    """Whether this is the accuracy run, which issues every sample once."""
    query_count: int
    """Queries that will be generated (Offline and accuracy: samples)."""
    journal_samples: int
    """Maximum number of samples that can be issued, which is the length of the journal."""
    total_count: int
    """Samples in the dataset."""
    performance_count: int
    """Samples held in memory."""
    seeds: Seeds
    samples_per_query: int = 1
    target_qps: float | None = None
    """Queries/s; Offline: samples/s."""
    percentile: float | None = None
    """The latency percentile that the SLO bounds, in (0, 1)."""
    latency_bound_ns: int | None = None
    token_latencies: bool = False
    """Whether LoadGen receives the tokens of each answer and, in Server, judges token times instead of the latency."""
    logged_answers: int = 0
    """Approximate number of answers from a performance run that LoadGen writes to its accuracy log."""
    answers_seed: int = 0
    """Seed that selects these answers. It differs in each run, so that a plug-in cannot predict the selection."""
    model_key: str | None = None
    """LoadGen's name of the benchmark with --mlperf; None for quick settings."""
    user_conf: str | None = None
    """File that LoadGen reads. It has all settings with --mlperf, else the bounds of token times."""
    audit_config: str | None = None
    """audit.config that LoadGen reads."""
    expected_s: float | None = None
    """Length of the run; None if it cannot be predicted."""
    schedule: str | None = None
    """File of the arrivals to replay (harness/loadgen/schedule.py)."""
    arrivals_sha256: str | None = None
    """Digest of the user's file from which `schedule` was made."""
    concurrency: int | None = None
    """Number of queries to keep in flight."""
    until: str | None = None
    """Condition that ends the run before its last query: `steady`, or a width such as `2%`; None to issue all."""
    least_queries: int | None = None
    """With `until`, the minimum number of queries; `query_count` is then the maximum."""
    streams: int | None = None
    """Number of concurrent real-time sequences. A query is then a frame (harness/loadgen/real_time.py)."""
    frame_period_ns: int | None = None
    """Time between consecutive frames of a stream; None without `streams`."""
    ramp: Mapping[str, Any] | None = None
    """Rate that grows until an SLO is missed: start (queries/s), factor, step_ns, hold_ns, slos (as in result.json)."""
    cancel_share: float = 0.0
    """Share of the queries whose requests the client cancels."""
    cancel_after_ns: int = 0
    """Time from sending such a request until its connection is closed."""
    probe_rate: float = 0.0
    """Probe requests per second during the load; 0 without probes."""
    sessions: bool = False
    """Whether queries are the turns of sessions, which wait for each other. `concurrency` then counts sessions, and
    `schedule` has session start times. Without both, sessions begin at the rate `target_qps` / mean number of turns."""
    load_hosts: int = 0
    """Number of measured processes that share the schedule and start it at a given time. If it is 0, one process starts
    it immediately."""
    equal_issue: bool = False
    """Whether the rules issue each sample equally often. LoadGen then extends the run to whole sample sets."""
    checks_answers: bool = False
    """Whether this is a short performance run next to an official accuracy run, made only for its answers."""

    @property
    def role(self) -> str:
        """Name of the run in messages, of its folder and of its field in Findings."""
        if self.checks_answers:
            return "answers"
        return "accuracy" if self.accuracy else "performance"

    @property
    def planned_samples(self) -> int:
        """Planned number of samples that the run answers. LoadGen decides the size of an official run."""
        return self.total_count if self.accuracy else self.query_count * self.samples_per_query

    @property
    def harness_scheduled(self) -> bool:
        """Whether the harness's scheduler issues the queries; harness/results/evidence/own_log.py writes the log."""
        others = (self.schedule, self.concurrency, self.streams, self.ramp)
        return any(one is not None for one in others) or self.load_hosts > 0 or self.sessions

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LoadPlan":
        return cls(**{**values, "seeds": Seeds(*values["seeds"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measurements that the measured process makes before the run, without LoadGen."""

    slowest_batch_ns: int
    """Time of the slowest batch of any size after the warm-up."""
    answer_bytes: int = 0
    """Size of one answer."""
    rate_per_s: float | None = None
    """Samples/s while every instance computes its largest batch; None for streams."""
    latency_ns: int | None = None
    """Median time of a single query on an idle system; None for Server and Offline."""
    issued_per_s: float | None = None
    """Queries/s (Offline: samples/s) that LoadGen reaches, including LoadGen's cost per query. It sizes a quick run.
    None for Server, whose rate is set by the user.
    """
    seconds: float | None = None
    """Time that the measurement of rate_per_s or latency_ns took; None if neither was needed."""
    batch_latency_ns: Sequence[tuple[int, int]] = ()
    """(samples, ns) per batch with every instance busy, if the dispatcher needs it or the warm-up chose the batch."""
    max_batch: int | None = None
    """Number of samples in the largest batch, if the warm-up chose it."""
    threads: int | None = None
    """Number of threads of the instance, if the warm-up chose it."""
    thread_latency_ns: Sequence[tuple[int, int]] = ()
    """(threads, ns) for a single query, if the warm-up tried fewer threads. The planned number comes first."""
    backend: Mapping[str, Any] | None = None
    """Result of the backend's `describe`, if the warm-up has opened the instance again."""
    cold: Mapping[str, Any] = field(default_factory=dict)
    """import_s of the backend; load_s, first_batch_ns and first_batch_samples of each instance."""
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    """seconds; sizes; skipped: sizes for which the time did not suffice; flat: whether times were stable."""
    placed: Sequence[tuple[int | None, int | None]] = ()
    """With --pin, one pair per instance: the number of threads that computed, and how many of them may run on other
    processors. None if the kernel does not report it.
    """


@dataclass(frozen=True, slots=True)
class Loaded:
    """The measured process's message `loaded`: the model and the dataset that it opened."""

    inputs: tuple[TensorSpec, ...]
    """Inputs of the model."""
    total_count: int
    """Samples in the dataset."""
    performance_count: int
    """Samples held in memory."""
    fixed_batch: int | None
    """Number of samples; None if the model file allows any batch size."""
    synthetic: bool
    """Whether the dataset is generated, so that the run has no score."""
    backend: Mapping[str, Any]
    """Result of the backend's `describe`."""
    dataset: Mapping[str, Any]
    """Result of the dataset's `describe`."""
    model_sha256: str | None
    model_bytes: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Loaded":
        inputs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in values["inputs"])
        return cls(**{**values, "inputs": inputs})


_LARGEST_QUERY = 4096
"""Number of samples in the largest query that --samples-per-query allows."""


def accuracy_samples(loaded: Loaded) -> int:
    """Returns the length of an accuracy run's journal: every sample once, plus space for duplicates.

    In MultiStream, duplicates fill the last query of each loaded set.
    """
    sets = ceil(loaded.total_count / loaded.performance_count)
    return loaded.total_count + (sets + 1) * _LARGEST_QUERY


def performance_samples(samples: int, loaded: Loaded, *, sessions: bool, from_file: bool) -> int:
    """Returns the length of a performance run's journal. samples: number of planned samples.

    Each arrival in a file begins a session. Before the run, only the length of the longest session is known.
    """
    return samples * loaded.dataset["turns"]["max"] if sessions and from_file else samples


class InstanceGroup(NamedTuple):
    """The instance group: the number of loaded model copies and their threads."""

    instances: int
    """Number of model copies."""
    threads: int
    """Number of threads per instance."""
    max_batch: int
    """Samples."""
    cores: float = 0.0
    """Processor time available to all instances, in cores."""
    pinned: tuple[tuple[int, ...], ...] = ()
    """Logical processors of each instance; () without --pin."""
    issuer: tuple[int, ...] = ()
    """Logical processors planned for LoadGen's thread; () if it may run anywhere. If the warm-up chooses the shared
    dispatcher, the thread moves to the processors of the first instance.
    """
    owns_cores: bool = False
    """Whether every core is used by only one instance and by nothing else in this process."""
    connections: int = 0
    """Number of connections to each server; 0 if the model runs on this machine."""
    nodes: int = 0
    """Number of nodes from --nodes, each with a separate instance group; 0 without --nodes."""
    wide: tuple[int, ...] = ()
    """Logical processors of the wide instance, which has one thread on each and answers a query when no other query
    waits; () without a wide instance. harness/run/measured/placement/wide.py opens it if it makes queries faster.
    """
    may_shrink: bool = False
    """Whether the warm-up may choose a batch below max_batch, in Offline if no option or manifest sets the size."""
    may_drop_threads: bool = False
    """Whether the warm-up may choose fewer threads, in streams if no option sets their number."""

    @property
    def workers(self) -> int:
        """Returns the number of instances that may answer batches; the wide instance comes last."""
        return self.instances + bool(self.wide)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "InstanceGroup":
        pinned = tuple(tuple(cpus) for cpus in values["pinned"])
        flat = {name: tuple(values.get(name, ())) for name in ("issuer", "wide")}
        return cls(**{**values, "pinned": pinned, **flat})

    def __str__(self) -> str:
        if self.connections:
            return f"{counted(self.connections, 'connection')} to each server, batch ≤ {self.max_batch}"
        if self.nodes:
            return f"{counted(self.nodes, 'node')}, batch ≤ {self.max_batch}"
        group = f"{counted(self.instances, 'instance')} of {counted(self.threads, 'thread')}"
        text = f"{group} on {self.cores:g} core{'' if self.cores == 1 else 's'}"
        if self.pinned:
            places = " | ".join(",".join(map(str, cpus)) for cpus in self.pinned)
            text += f", pinned to {places}"
        return f"{text}, batch ≤ {self.max_batch}"
