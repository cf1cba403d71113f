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
"""LoadGen's keys of benchmarks whose runs are one pass over the data, without a minimum duration.
Source: mlcommons/inference b66003e, e2e-rag/user.conf.
"""


def least_duration_ms(model_key: str | None) -> int:
    """Returns the duration of the shortest official performance run of a benchmark."""
    return 0 if model_key in ONE_PASS else MIN_DURATION_MS


class Seeds(NamedTuple):
    qsl: int
    sample_index: int
    schedule: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Settings of one run. With `schedule`, `concurrency`, `streams`, `sessions` or `load_hosts` the harness's scheduler
    replaces LoadGen.
    """

    scenario: str
    accuracy: bool
    """Whether this is the accuracy run, which issues every sample once."""
    query_count: int
    """Queries that will be generated (Offline and accuracy: samples)."""
    journal_samples: int
    """The maximum number of samples that can be issued: the length of the journal."""
    total_count: int
    """Samples in the dataset."""
    performance_count: int
    """Samples held in memory."""
    seeds: Seeds
    samples_per_query: int = 1
    target_qps: float | None = None
    """Queries/s; Offline: samples/s."""
    percentile: float | None = None
    """The percentile of the latency that the SLO bounds, in (0, 1)."""
    latency_bound_ns: int | None = None
    token_latencies: bool = False
    """Whether LoadGen receives the tokens of each answer and, in Server, judges their times instead of the latency."""
    logged_answers: int = 0
    """Approximate number of a performance run's answers that go into LoadGen's accuracy log."""
    answers_seed: int = 0
    """Seed that draws these answers. It differs in each run, so a plug-in cannot know them."""
    model_key: str | None = None
    """LoadGen's name of the benchmark with --mlperf; None: quick settings."""
    user_conf: str | None = None
    """File that LoadGen reads: all settings with --mlperf, else the bounds of the token times."""
    audit_config: str | None = None
    """audit.config that LoadGen reads."""
    expected_s: float | None = None
    """Length of the run; None if it cannot be predicted."""
    schedule: str | None = None
    """File of the arrivals to replay (harness/loadgen/schedule.py)."""
    arrivals_sha256: str | None = None
    """Digest of the user's file from which `schedule` was made."""
    concurrency: int | None = None
    """Queries to keep in flight."""
    until: str | None = None
    """When the run ends before its count of queries: `steady`, or a width such as `2%`; None: the run issues all its queries."""
    least_queries: int | None = None
    """With `until`, the queries after which the run may end; `query_count` is then the limit."""
    streams: int | None = None
    """Sequences that play at a time in real time; a query is then a frame (harness/loadgen/real_time.py)."""
    frame_period_ns: int | None = None
    """Time from one frame of a stream to the next; None without `streams`."""
    ramp: Mapping[str, Any] | None = None
    """Rate that grows until an SLO breaks: start (queries/s), factor, step_ns, hold_ns, slos (as in result.json)."""
    cancel_share: float = 0.0
    """Share of the queries whose requests the client cancels."""
    cancel_after_ns: int = 0
    """Time from sending such a request until its connection is closed."""
    probe_rate: float = 0.0
    """Probe requests per second during the load; 0 without probes."""
    sessions: bool = False
    """Whether queries are the turns of sessions, which wait for each other: `concurrency` counts sessions, `schedule` has
    the start times of sessions, and without both they begin at `target_qps` / their mean number of turns."""
    load_hosts: int = 0
    """Measured processes that share the schedule and start it at a given time; 0: one process, which starts at once."""
    equal_issue: bool = False
    """Whether the rules issue each sample equally often; LoadGen then extends the run to whole sets of samples."""
    checks_answers: bool = False
    """Whether this is a short performance run next to an official accuracy run, made only for its answers."""

    @property
    def role(self) -> str:
        """The run's name in messages, its folder and its field in Findings."""
        if self.checks_answers:
            return "answers"
        return "accuracy" if self.accuracy else "performance"

    @property
    def planned_samples(self) -> int:
        """Samples that the run is planned to answer. LoadGen itself decides the size of an official run."""
        return self.total_count if self.accuracy else self.query_count * self.samples_per_query

    @property
    def harness_scheduled(self) -> bool:
        """Whether the harness's scheduler issues the queries; harness/results/evidence/own_log.py then writes the log."""
        others = (self.schedule, self.concurrency, self.streams, self.ramp)
        return any(one is not None for one in others) or self.load_hosts > 0 or self.sessions

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LoadPlan":
        return cls(**{**values, "seeds": Seeds(*values["seeds"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measurements of the measured process before the run, without LoadGen."""

    slowest_batch_ns: int
    """Time of the slowest batch of any size after the warm-up."""
    answer_bytes: int = 0
    """Size of one answer."""
    rate_per_s: float | None = None
    """Samples/s with every instance busy on its largest batch; None for streams."""
    latency_ns: int | None = None
    """Median time of one query answered alone; None for Server and Offline."""
    issued_per_s: float | None = None
    """Queries/s (Offline: samples/s) that LoadGen reaches, including its own cost per query. It sizes a quick run.
    None for Server, whose rate is set.
    """
    seconds: float | None = None
    """Time for measuring rate_per_s or latency_ns; None if neither was needed."""
    batch_latency_ns: Sequence[tuple[int, int]] = ()
    """(samples, ns) with every instance busy, if the dispatcher needs it, or if the warm-up chose the batch."""
    max_batch: int | None = None
    """Samples of the largest batch, if the warm-up chose it."""
    threads: int | None = None
    """Threads of the instance, if the warm-up chose their number."""
    thread_latency_ns: Sequence[tuple[int, int]] = ()
    """(threads, ns) of a query that is alone, if the warm-up tried fewer threads; the plan's number is the first."""
    backend: Mapping[str, Any] | None = None
    """Result of the backend's `describe`, if the warm-up has opened the instance again."""
    cold: Mapping[str, Any] = field(default_factory=dict)
    """import_s of the backend; load_s, first_batch_ns and first_batch_samples of each instance."""
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    """seconds; sizes; skipped: sizes for which there was no time; flat: whether times were stable."""
    placed: Sequence[tuple[int | None, int | None]] = ()
    """With --pin, for each instance: the number of threads that computed, and how many of these may run on other
    processors; None if the kernel does not report it.
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
    """Samples; None if the model's file allows batches of any size."""
    synthetic: bool
    """Whether the dataset is generated, so the run has no score."""
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
"""Samples of the largest query that --samples-per-query allows."""


def accuracy_samples(loaded: Loaded) -> int:
    """Returns the length of an accuracy run's journal: every sample once, and space for duplicates.

    In multi-stream, duplicates fill the last query of each loaded set.
    """
    sets = ceil(loaded.total_count / loaded.performance_count)
    return loaded.total_count + (sets + 1) * _LARGEST_QUERY


def performance_samples(samples: int, loaded: Loaded, *, sessions: bool, from_file: bool) -> int:
    """Returns the length of a performance run's journal. samples: number of planned samples.

    Each arrival of a file begins a session; before the run, only the length of the longest session is known.
    """
    return samples * loaded.dataset["turns"]["max"] if sessions and from_file else samples


class InstanceGroup(NamedTuple):
    """The instance group: the number of loaded copies of the model, and their threads."""

    instances: int
    """Copies of the model."""
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Samples."""
    cores: float = 0.0
    """Processor time available to all instances, in cores."""
    pinned: tuple[tuple[int, ...], ...] = ()
    """Logical processors of each instance; () without --pin."""
    issuer: tuple[int, ...] = ()
    """Logical processors planned for LoadGen's thread; () if it runs anywhere. The warm-up may choose the shared
    dispatcher, which moves the thread to the processors of the first instance.
    """
    owns_cores: bool = False
    """Whether every core is used by only one instance, and by nothing else in this process."""
    connections: int = 0
    """Connections to each server; 0 if the model runs on this machine."""
    nodes: int = 0
    """Nodes of --nodes, each with a separate instance group; 0 without them."""
    wide: tuple[int, ...] = ()
    """Logical processors of the wide instance, which has a thread on each and answers queries that are alone; ()
    without one. harness/run/measured/placement/wide.py opens it if it makes the queries faster.
    """
    may_shrink: bool = False
    """Whether the warm-up may choose a batch below max_batch: in Offline, if no option or manifest sets the size."""
    may_drop_threads: bool = False
    """Whether the warm-up may choose fewer threads: in streams, if no option sets their number."""

    @property
    def workers(self) -> int:
        """Number of instances that may answer batches; the wide instance is the last."""
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
