"""Documents the sections of result.json about latency, rates, score, stages and queries."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, final

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on only

Number = int | float


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
    """LoadGen's detail log, `harness scheduler`, `interrupted, from the journal` or `log unusable, from the journal`."""


class PercentileInterval(TypedDict):
    """A latency percentile and how far it may be off (docs/intervals.md)."""

    estimate: int
    """ns; the percentile of `latency_ns`. It lies in both intervals."""
    journal: int
    """ns; the same percentile by the journal, whose clock readings lie between LoadGen's."""
    order_statistic: Sequence[int | None]
    """[low, high] in ns, for independent samples; an end is null where the run is too short for it."""
    block_interval: Sequence[int | None]
    """[low, high] in ns, for samples whose neighbours are alike; both ends are null where the run has too
    few independent parts."""
    block_interval_reason: NotRequired[str | None]
    """Why `block_interval` has no ends, and how much longer the run must be; null where it has both. Absent
    in results of earlier versions."""
    effective_samples: int
    """Number of independent samples that the run is worth for this percentile, by the spread between
    blocks of neighbouring samples."""
    early_stopping: int | None
    """ns; with 99 % confidence the true percentile is not above it. Null where queries are too few."""


P999Interval = TypedDict("P999Interval", {"p99.9": PercentileInterval})


class Intervals(P999Interval):
    """Confidence intervals of the percentiles: ranks by the journal, times on LoadGen's clock."""

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
    """Confidence level of order_statistic and block_interval, in (0, 1)."""


class Throughput(TypedDict):
    """Rates in samples/s; in queries/s where `headline` is."""

    asked: float | None
    """--target-qps; null outside Server and where the harness scheduler sets no rate."""
    scheduled: float | None
    """The rate that the schedule drew from the seed; null outside Server and after an interrupted run."""
    completed: float | None
    """Rate of completions, of failed samples, too, as LoadGen counts; null where nothing was completed."""
    source: str
    """`LoadGen`, `harness scheduler`, `journal`, `interrupted, from the journal` or `log unusable, from the journal`."""


class ComparedAnswers(TypedDict):
    """Answers of the performance run compared with the accuracy run's."""

    answers: int
    """Answers compared."""
    differing: int
    """Answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty where none differs."""
    misplaced: int
    """Logged answers that are of another sample than the journal has at their place."""


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


class AtOtherSpeed(TypedDict):
    """The reference dispatcher with a model of another speed."""

    reference: float
    """In `unit` of the section."""
    ratio: float
    """`ours` divided by it."""


@final
class OnAllCores(TypedDict):
    """The reference dispatcher with instances on all cores, each as fast as one of the plan's."""

    instances: int
    """Instances, with the plan's threads each."""
    reference: float
    """In `unit` of the section."""


@final
class Reference(TypedDict):
    """The run beside a dispatcher without cost (docs/decisions/results.md), from bare loops."""

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
    at_run_speed: AtOtherSpeed
    """Comparison at the speed that the model had in the run."""
    at_slower_loops: NotRequired[AtOtherSpeed]
    """Comparison with the slower of the bare loops before and after; only if `drift` exceeds 10 %."""
    on_all_cores: NotRequired[OnAllCores]
    """Only if the plan leaves half of the cores idle, or more; not in streams."""
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


@final
class InputProbe(TypedDict):
    """Untimed batches after the run: changed inputs beside repeated ones, and inputs of other samples."""

    samples: int
    """Samples in each batch."""
    rounds: int
    """Rounds of a batch with slightly changed values, the same again, and a batch of the dataset; 0 where the
    inputs cannot be changed."""
    changed_ns: float | None
    """Median time of the batches with changed values in ns; null without a round."""
    over_again: Sequence[float] | None
    """[low, median, high]: time with changed values divided by the time of the same batch once more, with a
    99 % interval of the median; null with too few rounds."""
    over_seen: Sequence[float] | None
    """Ratio like `over_again`, divided by the time of a batch that the run may have had."""
    rows: int
    """Samples that answered alike again, and otherwise to the inputs of another sample."""
    by_index: int
    """Samples in `rows` that followed the dataset index in the caller's frame, and not the inputs."""
    raised: str
    """Last line of the exception that a batch raised; empty without one."""


@final
class NotProbed(TypedDict):
    """In place of a probe."""

    reason: str
    """Why the instance was not probed."""


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
    """Queries above the latency bound; null outside Server, and without such a bound."""
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
