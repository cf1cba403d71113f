"""Types of result.json: every key with its unit, its source, and when it is null or missing.

docs/result.md and result.schema.json are generated from the classes and their docstrings by
scripts/docs.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, final

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on only

Number = int | float


class ReasonEntry(TypedDict):
    """A reason or a doubt."""

    code: str
    """Stable identifier; docs/verdict.md explains each."""
    text: str
    """One line with the measured numbers and what to do."""


class Headline(TypedDict):
    """The scenario's own number, as LoadGen's summary quotes it."""

    name: str
    """Name of the quantity, e.g. `completed queries`."""
    value: float
    """In `unit`."""
    unit: str
    """`ns`, `queries/s` or `samples/s`."""
    source: str
    """Scheduler and the key of its detail log."""


P999 = TypedDict("P999", {"p99.9": int | None})


class Latency(P999):
    """Latency of queries in ns; of samples in Offline. LoadGen's after a whole run, the journal's otherwise."""

    mean: int | None
    """ns."""
    min: int | None
    """ns."""
    max: int | None
    """ns."""
    p50: int | None
    """ns; a percentile is null where LoadGen's log has none."""
    p90: int | None
    """ns."""
    p95: int | None
    """ns."""
    p97: int | None
    """ns."""
    p99: int | None
    """ns."""
    source: str
    """LoadGen's detail log, `harness scheduler`, or `interrupted, from the journal`."""


class PercentileInterval(TypedDict):
    """A percentile of the journal's latencies and how far it may be off."""

    estimate: int
    """ns; the percentile itself."""
    order_statistic: Sequence[int | None]
    """[low, high] in ns, for independent samples; an end is null where the run is too short for it."""
    block_bootstrap: Sequence[int]
    """[low, high] in ns, from blocks of neighbouring samples drawn again."""
    early_stopping: int | None
    """ns; with 99 % confidence the true percentile is not above it. Null where queries are too few."""


P999Interval = TypedDict("P999Interval", {"p99.9": PercentileInterval})


class Intervals(P999Interval):
    """Confidence intervals of the percentiles, from the journal."""

    p50: PercentileInterval
    """Interval of p50."""
    p90: PercentileInterval
    """Interval of p90."""
    p95: PercentileInterval
    """Interval of p95."""
    p97: PercentileInterval
    """Interval of p97."""
    p99: PercentileInterval
    """Interval of p99."""
    level: float
    """Confidence level of order_statistic and block_bootstrap, in (0, 1)."""
    source: str
    """`journal`."""


class Throughput(TypedDict):
    """Rates in samples/s; in queries/s where `headline` is."""

    asked: float | None
    """--target-qps; null outside Server and where the harness scheduler sets no rate."""
    scheduled: float | None
    """The rate that the schedule drew from the seed; null outside Server and after an interrupted run."""
    completed: float | None
    """Rate of completions; null where nothing was completed."""
    source: str
    """`LoadGen`, `harness scheduler`, `journal`, or `interrupted, from the journal`."""


class ComparedAnswers(TypedDict):
    """Answers of the performance run compared with the accuracy run's."""

    answers: int
    """Answers compared."""
    differing: int
    """Answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty where none differs."""


class Scored(TypedDict):
    """The score of the accuracy run."""

    metric: str
    """Name of the metric."""
    value: float
    """In `unit`."""
    unit: str
    """Unit of the metric, e.g. `%`."""
    samples: int
    """Samples scored."""
    target: float | None
    """The manifest's target in `unit`; null where the manifest has none for this metric."""
    lower_is_better: bool
    """True for errors: the target is then the largest value that may be quoted."""
    details: Mapping[str, float]
    """Further values of the metric by name."""
    compared: ComparedAnswers | None
    """Null where the performance run logged no answers."""
    source: str
    """`LoadGen mlperf_log_accuracy.json`."""


class NotScored(TypedDict):
    """In place of a score."""

    value: None
    """Always null."""
    reason: str
    """Why there is no score."""


class PowerReading(TypedDict):
    """Energy of one source in the window."""

    source: str
    """Name of the counter or sensor, e.g. `rapl:package-0`."""
    domain: str
    """What the source covers."""
    provenance: Literal["measured", "estimated"]
    """`measured` or `estimated`."""
    joules: float
    """J in the window."""
    mean_watts: float
    """W."""
    peak_watts: float
    """W; highest mean over one second."""
    readings: int
    """Readings that the window was cut from."""
    idle_watts: float | None
    """W before the run; null where no idle baseline was read."""
    joules_per_query: float
    """J divided by the queries of the run."""
    joules_per_sample: float
    """J divided by the samples of the run."""


class MissingReading(TypedDict):
    """A source without a usable reading."""

    source: str
    """Name of the counter or sensor."""
    reason: str
    """Why it has no energy."""


class Power(TypedDict):
    """Energy of the performance run."""

    readings: Sequence[PowerReading]
    """One entry for each source with energy."""
    missing: Sequence[MissingReading]
    """One entry for each source without."""
    seconds: float
    """Length of the window in s."""
    window: str
    """Origin of the window's ends."""
    note: str
    """Whether the numbers may be called an MLPerf Power result."""


class PowerSection(TypedDict):
    """The keys of `Result` about power."""

    power: Power | None
    power_reason: str | None


class Stage(TypedDict):
    """Time of samples in one stage, from the journal."""

    p50: Number
    """ns."""
    p99: Number
    """ns."""
    share: float
    """Share of the latency of all samples, in [0, 1]."""


class ServiceTime(TypedDict):
    """Bare loops of one batch size."""

    batch: int
    """Samples in the batch."""
    before: float
    """Median in ns before the run."""
    after: float
    """Median in ns after the run."""


class AtRunSpeed(TypedDict):
    """The reference dispatcher with a model as slow as it was in the run."""

    reference: float
    """In `unit` of the section."""
    ratio: float
    """`ours` divided by it."""


@final
class Reference(TypedDict):
    """The run beside a dispatcher that costs nothing (docs/decisions/results.md), from bare loops."""

    service_ns: Sequence[ServiceTime]
    """Bare loops by batch size."""
    batches: int
    """Batches that the bare loops ran."""
    drift: float
    """Change of the bare loops' medians over the run: 0.1 is a tenth slower afterwards."""
    model_ratio: float
    """Time of the run's batches divided by the bare loops' for the same sizes."""
    null_backend_per_s: float | None
    """Highest samples/s of a VALID run of the null backend on this machine; null without one."""
    what: str
    """The number that is compared: a percentile or `samples/s`."""
    unit: str
    """`ns` or `samples/s`."""
    reference: float
    """The reference dispatcher's number, in `unit`."""
    ours: float
    """The run's number, in `unit`, from the journal."""
    ratio: float
    """`ours` divided by `reference`."""
    at_run_speed: AtRunSpeed
    """The same comparison at the speed that the model had in the run."""
    queries: NotRequired[int]
    """Queries simulated; Server only."""
    of_queries: NotRequired[int]
    """Queries of the run; Server only."""
    lost_ns: NotRequired[Mapping[str, float]]
    """Stage -> mean ns longer than the reference's; missing in Offline."""


@final
class NoReference(TypedDict):
    """In place of a reference."""

    reason: str
    """Why the bare loops could not be run."""


class SteadyState(TypedDict):
    """Medians of the first and the last third of the run, from the journal."""

    what: str
    """The time whose medians these are."""
    first_third_ns: float
    """Median in ns."""
    last_third_ns: float
    """Median in ns."""
    spread_ns: float
    """Noise within a third in ns: the median distance of its blocks' medians from its own."""
    is_steady: bool
    """False where the thirds differ by more than noise."""


class Queries(TypedDict):
    """Counts of the performance run."""

    planned: int
    """Queries of the load plan."""
    samples_per_query: int
    """Samples in each query."""
    counted_by_loadgen: int | None
    """Queries in LoadGen's log; null where it has no count or the harness scheduler ran."""
    late: int | None
    """Queries above the latency bound; null outside Server."""
    samples_issued: int
    """From the journal."""
    samples_answered: int
    """From the journal."""
    samples_failed: int
    """From the journal: the backend raised."""
    expected_s: float | None
    """Expected duration in s; null where the plan has no estimate."""
    took_s: float | None
    """First scheduled time to last completion in s; null where nothing was completed."""
    mean_batch: float | None
    """Mean samples in a batch; null where nothing was completed."""


class Arrivals(TypedDict):
    """Origin of the queries' times."""

    source: str
    """`LoadGen` or `harness scheduler`."""
    schedule_sha256: str | None
    """Digest of the file of --arrivals; null without one."""
    concurrency: int | None
    """Queries kept in flight by --concurrency; null without it."""


class FrequencyThirds(TypedDict):
    """Median frequency of the fastest core; both null where the run is short or the kernel reports none."""

    first_third: float | None
    """MHz."""
    last_third: float | None
    """MHz."""


class Host(TypedDict):
    """The machine in LoadGen's window, from host.csv. A value that the kernel does not report is null."""

    rows: int
    """Rows of host.csv, one a second."""
    cpu_shares: Mapping[str, float] | None
    """Mode -> share of the time of all cores, in [0, 1]."""
    fastest_core_mhz: FrequencyThirds
    """Frequency of the fastest core at both ends of the run."""
    hottest_celsius: float | None
    """Highest temperature of any sensor, in degrees Celsius."""
    thermal_throttles: float | None
    """Throttle events of the processor."""
    cgroup_throttled_s: float | None
    """Seconds that the container's CPU quota held the run back."""
    memory_available_bytes: float | None
    """Least memory available, in bytes."""
    measured_rss_bytes: float | None
    """Largest resident set of the measured process, in bytes."""
    measured_minor_faults: float | None
    """Page faults of the measured process without disk access."""
    measured_major_faults: float | None
    """Page faults of the measured process with disk access."""
    measured_voluntary_switches: float | None
    """Voluntary context switches of the measured process."""
    measured_involuntary_switches: float | None
    """Involuntary context switches of the measured process."""
    measured_cpu_s: float | None
    """CPU time of the measured process in s."""
    settings: Mapping[str, float]
    """Settings of the machine in the last row, e.g. cores by governor."""
    settings_changed: Mapping[str, Sequence[float]]
    """Settings that changed in the run -> [lowest, highest]."""


class MeasuredProcess(TypedDict):
    """The measured process from loading the samples until LoadGen unloads them, from getrusage and /proc."""

    cpu_s_per_query: float
    """CPU time in s a query."""
    cpu_over_wall: float | None
    """Cores busy on average."""
    voluntary_switches_per_query: float
    """Context switches a query because a thread waited."""
    involuntary_switches_per_query: float
    """Context switches a query because another thread took the core."""
    cyclic_garbage_objects: int | None
    """Python objects left to the cyclic garbage collector; null where they were not counted."""
    rss_growth_bytes: int | None
    """Largest growth of the resident set from LoadGen's start on, in bytes; null with a reason."""
    rss_growth_reason: str | None
    """Why `rss_growth_bytes` is null; null where it is not."""


class NoiseFloor(TypedDict):
    """How late timed sleeps of 1 ms woke up before the run."""

    p50: int
    """ns."""
    p99: int
    """ns."""
    steal: float | None
    """Share of CPU time stolen by other guests; null where the kernel does not report it."""


class Placed(TypedDict):
    """Threads of one instance under --pin, from the kernel."""

    threads: int | None
    """Threads that computed; null where the kernel does not report them."""
    outside: int | None
    """Threads of these that may run on other processors."""


class Plan(TypedDict):
    """The instance group and the dispatcher."""

    instances: int
    """Copies of the model."""
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Largest batch in samples."""
    cores: float
    """Processor time available to all instances, in cores."""
    pinned: Sequence[Sequence[int]] | None
    """Logical processors of each instance; null without --pin."""
    issuer: Sequence[int] | None
    """Logical processors of LoadGen's thread: where it ran, or the plan where the run did not report it. Null: anywhere."""
    owns_cores: bool
    """Whether every core is used by one instance only."""
    placed: Sequence[Placed] | None
    """One entry for each instance; null without --pin."""
    dispatch: str | None
    """--dispatch; null without it."""
    batch_wait_ns: int
    """--batch-wait in ns."""
    dispatcher: str | None
    """The dispatcher that ran; null where the run did not end by itself."""


class Calibration(TypedDict):
    """Measurements before the run, without LoadGen."""

    rate_per_s: float | None
    """Samples/s with every instance busy; null for streams."""
    latency_ns: int | None
    """Median ns of one query alone; null for Server and Offline."""
    slowest_batch_ns: int
    """Slowest batch after the warm-up, of any size, in ns."""
    batch_latency_ns: Sequence[Sequence[int]] | None
    """[samples, ns] by batch size; null without --dispatch deadline."""
    seconds: float | None
    """Duration of the calibration in s; null where none was needed."""


class Result(TypedDict):
    """The content of result.json, of one run."""

    schema_version: int
    """Version of the configuration's and the result's format."""
    verdict: Literal["VALID", "INVALID"]
    """VALID where `reasons` is empty."""
    reasons: Sequence[ReasonEntry]
    """Why the numbers must not be quoted."""
    doubts: Sequence[ReasonEntry]
    """Why the numbers should not be believed yet, of a VALID run too."""
    not_for_submission: Sequence[str]
    """Why the run is no MLPerf submission."""
    started: str
    """Start of the run, ISO 8601, UTC."""
    scenario: str
    """--scenario."""
    mode: str
    """--mode: performance, accuracy or both."""
    backend: str
    """--backend."""
    model: str
    """Name of the model's manifest."""
    dataset: str
    """Name of the dataset."""
    slo: str | None
    """The SLO, e.g. `p99=50ms`; null where the run has none."""
    headline: Headline | None
    """The number that the scenario is quoted by; null without a whole performance run."""
    latency_ns: Latency | None
    """Latency percentiles; null without a performance run."""
    latency_intervals_ns: Intervals | None
    """Confidence intervals by the journal; null in Offline and where no query was completed."""
    throughput_per_s: Throughput | None
    """Offered and completed rates; null without a performance run."""
    accuracy: Scored | NotScored
    """The score, or the reason why there is none."""
    power: Power | None
    """Energy by source, from the meters of --meter; null with a reason."""
    power_reason: str | None
    """Why `power` is null; null where it is not."""
    stages_ns: Mapping[str, Stage] | None
    """Stage -> time of samples, from the journal; null where nothing was completed."""
    reference: Reference | NoReference | None
    """What a dispatcher without cost would have reached; null where the run did not end by itself."""
    steady_state: SteadyState | None
    """Null with too few samples, and where replayed arrivals change their rate."""
    queries: Queries | None
    """Counts; null without a performance run."""
    arrivals: Arrivals | None
    """Who scheduled the queries; null without a performance run."""
    host: Host | None
    """The machine during the run; null without a whole performance run or without rows in its window."""
    measured_process: MeasuredProcess | None
    """Resources of the measured process; null where the run did not end by itself."""
    noise_floor_ns: NoiseFloor | None
    """Timer noise before the run; null where it was not measured."""
    plan: Plan
    """How the work was laid out."""
    calibration: Calibration | None
    """Null where the run ended before its calibration."""
    cold: Mapping[str, Any] | None
    """import_s of the backend in s; load_s, first_batch_ns and first_batch_samples of the instances. Null where `calibration` is."""
    warm_up: Mapping[str, Any] | None
    """seconds; number of batch sizes; sizes skipped for want of time; whether times were stable. Null where `calibration` is."""
    backend_description: Mapping[str, Any] | None
    """The backend's own report: versions, device, precision; null where the model was not loaded."""
    dataset_description: Mapping[str, Any] | None
    """The dataset's own report: count, source, digest; null where the model was not loaded."""
    environment: Mapping[str, Any]
    """The content of environment.json; empty where the run ended before it was written."""
