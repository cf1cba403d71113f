"""Defines the load plan, which contains every setting of LoadGen for one run. The plan is fixed before the first query."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, NamedTuple

from harness.core.units import counted
from harness.types import TensorSpec

MIN_DURATION_MS = 600_000
"""Minimum duration of an official performance run. Source: mlperf.conf, *.*.min_duration."""

ONE_PASS = ("e2e-rag-qna", "e2e-rag-db")
"""LoadGen's keys of benchmarks whose runs process each sample once and have no minimum duration.

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
    """Planned number of queries (Offline and accuracy: samples)."""
    journal_samples: int
    """Maximum number of samples that can be issued. The journal has room for this number of samples."""
    total_count: int
    """Number of samples in the dataset."""
    performance_count: int
    """Number of samples held in memory."""
    seeds: Seeds
    samples_per_query: int = 1
    target_qps: float | None = None
    """Rate in queries/s (Offline: samples/s)."""
    percentile: float | None = None
    """The latency percentile that the SLO bounds, in (0, 1)."""
    latency_bound_ns: int | None = None
    token_latencies: bool = False
    """Whether LoadGen receives the tokens of each answer and, in Server, judges token times instead of the latency."""
    logged_answers: int = 0
    """Approximate number of answers from a performance run that LoadGen writes to its accuracy log."""
    answers_seed: int = 0
    """Seed that selects the logged answers. The seed differs in each run, so that a plug-in cannot predict the
    selection.
    """
    model_key: str | None = None
    """LoadGen's name for the benchmark in an official run (--mlperf); None for other runs."""
    user_conf: str | None = None
    """File that LoadGen reads. The file contains all settings of an official run, or only the bounds of token times."""
    audit_config: str | None = None
    """Path of the audit.config that LoadGen reads."""
    expected_s: float | None = None
    """Expected duration of the run; None if the duration cannot be predicted."""
    schedule: str | None = None
    """File with the arrivals to replay (see harness/loadgen/schedule.py)."""
    arrivals_sha256: str | None = None
    """Digest of the user's file from which `schedule` was made."""
    concurrency: int | None = None
    """Number of queries to keep in flight."""
    until: str | None = None
    """Condition that ends the run before its last query: `steady` or a width such as `2%`. If `until` is None, all
    queries are issued.
    """
    least_queries: int | None = None
    """With `until`, the minimum number of queries; `query_count` is then the maximum."""
    streams: int | None = None
    """Number of concurrent real-time sequences. Each query is then a frame (see harness/loadgen/real_time.py)."""
    frame_period_ns: int | None = None
    """Time between consecutive frames of a stream; None without `streams`."""
    ramp: Mapping[str, Any] | None = None
    """Ramp whose rate grows until an SLO is missed. Keys: start (queries/s), factor, step_ns, hold_ns, slos (as in
    result.json).
    """
    cancel_share: float = 0.0
    """Share of the queries whose requests the client cancels."""
    cancel_after_ns: int = 0
    """Time between sending a request that is cancelled and closing its connection."""
    probe_rate: float = 0.0
    """Probe requests per second during the load; 0 without probes."""
    sessions: bool = False
    """Whether queries are turns of sessions, in which turns wait for earlier turns. `concurrency` then counts sessions,
    and `schedule` contains the start times of sessions. If neither field is set, sessions begin at the rate
    `target_qps` / mean number of turns.
    """
    load_hosts: int = 0
    """Number of measured processes that share the schedule and start it at a common time. If this is 0, one process
    starts the schedule immediately.
    """
    equal_issue: bool = False
    """Whether all samples are issued equally often, as the rules require. LoadGen then extends the run to complete
    sets.
    """
    checks_answers: bool = False
    """Whether this is a short performance run that logs answers, in addition to an official accuracy run."""

    @property
    def role(self) -> str:
        """Name of the run in messages, of the run's folder, and of the run's field in Findings."""
        if self.checks_answers:
            return "answers"
        return "accuracy" if self.accuracy else "performance"

    @property
    def planned_samples(self) -> int:
        """Planned number of samples that the run answers. In an official run, LoadGen decides the actual number."""
        return self.total_count if self.accuracy else self.query_count * self.samples_per_query

    @property
    def harness_scheduled(self) -> bool:
        """Whether the harness's scheduler issues queries. In such a run, harness/results/evidence/own_log.py makes the
        log.
        """
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
    """Time of the slowest batch after the warm-up, over all batch sizes."""
    answer_bytes: int = 0
    """Size of one answer in bytes."""
    rate_per_s: float | None = None
    """Samples/s while every instance computes its largest batch; None for streams."""
    latency_ns: int | None = None
    """Median time of a single query on an idle system; None for Server and Offline."""
    issued_per_s: float | None = None
    """Rate in queries/s (Offline: samples/s) that LoadGen reaches, including LoadGen's time per query. The size of a
    quick run is computed from this rate. None for Server, because the user sets Server's rate.
    """
    seconds: float | None = None
    """Time taken to measure rate_per_s or latency_ns; None if neither was measured."""
    batch_latency_ns: Sequence[tuple[int, int]] = ()
    """Pairs (samples, ns), one per batch size, measured while every instance is busy. Empty unless the dispatcher needs
    these times or the warm-up chose the batch size.
    """
    max_batch: int | None = None
    """Number of samples in the largest batch; None unless the warm-up chose this number."""
    threads: int | None = None
    """Number of threads of the instance; None unless the warm-up chose this number."""
    thread_latency_ns: Sequence[tuple[int, int]] = ()
    """Pairs (threads, ns) for a single query, with the planned number of threads first. Empty unless the warm-up tried
    fewer threads.
    """
    backend: Mapping[str, Any] | None = None
    """Result of the backend's `describe`; None unless the warm-up has reopened the instance."""
    cold: Mapping[str, Any] = field(default_factory=dict)
    """Times of the cold start: import_s of the backend, and load_s, first_batch_ns and first_batch_samples of each
    instance.
    """
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the warm-up: seconds, sizes, skipped (number of sizes for which there was no time) and flat (whether
    the latency had stopped falling).
    """
    placed: Sequence[tuple[int | None, int | None]] = ()
    """With --pin, one pair per instance: the number of threads that computed, and the number of these threads that may
    run on other processors. A number is None if the kernel does not report it.
    """


@dataclass(frozen=True, slots=True)
class Loaded:
    """Content of the measured process's message `loaded`, about the model and the dataset that it opened."""

    inputs: tuple[TensorSpec, ...]
    """Inputs of the model."""
    total_count: int
    """Number of samples in the dataset."""
    performance_count: int
    """Number of samples held in memory."""
    fixed_batch: int | None
    """The only batch size that the model file allows; None if it allows any size."""
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
    """Returns the length of an accuracy run's journal. The journal has space for every sample once, and for duplicates.

    In MultiStream, duplicates fill the last query of each sample set.
    """
    sets = ceil(loaded.total_count / loaded.performance_count)
    return loaded.total_count + (sets + 1) * _LARGEST_QUERY


def performance_samples(samples: int, loaded: Loaded, *, sessions: bool, from_file: bool) -> int:
    """Returns the length of a performance run's journal. samples: number of planned samples.

    If sessions begin at the arrivals in a file, each arrival has space for the longest session, because the sessions
    are not known before the run.
    """
    return samples * loaded.dataset["turns"]["max"] if sessions and from_file else samples


class InstanceGroup(NamedTuple):
    """A group of instances: the number of model copies, and the threads and processors of the copies."""

    instances: int
    """Number of model copies."""
    threads: int
    """Number of threads per instance."""
    max_batch: int
    """Maximum number of samples in a batch."""
    cores: float = 0.0
    """Processor time available to all instances, in cores."""
    pinned: tuple[tuple[int, ...], ...] = ()
    """Logical processors of each instance; () without --pin."""
    issuer: tuple[int, ...] = ()
    """Logical processors planned for LoadGen's thread; () if the thread may run on any processor. If the warm-up
    chooses the shared dispatcher, the thread uses the processors of the first instance instead.
    """
    owns_cores: bool = False
    """Whether each core is used by only one instance, and by nothing else in this process."""
    connections: int = 0
    """Number of connections to each server; 0 if the model runs on this machine."""
    nodes: int = 0
    """Number of nodes in --nodes. Each node has a separate instance group. 0 without --nodes."""
    wide: tuple[int, ...] = ()
    """Logical processors of the wide instance; () without a wide instance.

    The wide instance has one thread on each of these processors, and answers a query when no other query waits.
    harness/run/measured/placement/wide.py opens the wide instance if this makes queries faster.
    """
    may_shrink: bool = False
    """Whether the warm-up may choose a batch size below max_batch. A smaller batch size is possible in Offline if no
    option or manifest sets the size.
    """
    may_drop_threads: bool = False
    """Whether the warm-up may choose fewer threads. Fewer threads are possible in streams if no option sets the number
    of threads.
    """

    @property
    def workers(self) -> int:
        """Returns the number of instances that may process batches. A wide instance has the last number."""
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
