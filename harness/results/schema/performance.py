"""Documents the sections of result.json about latency, rates, score, stages and queries."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, final

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

Number = int | float


P999 = TypedDict("P999", {"p99.9": int | None})


class Latency(P999):
    """Latency of queries in ns (in Offline, of samples): LoadGen's after a complete run, otherwise the journal's."""

    mean: int | None
    """ns."""
    min: int | None
    """ns."""
    max: int | None
    """ns."""
    p50: int | None
    """ns; a percentile is null if LoadGen's log does not have it."""
    p90: int | None
    """ns."""
    p95: int | None
    """ns."""
    p97: int | None
    """ns."""
    p99: int | None
    """ns."""
    source: str
    """`LoadGen mlperf_log_detail.txt`, `harness scheduler`, `interrupted, from the journal` or `log unusable, from the
    journal`."""


class PercentileInterval(TypedDict):
    """A latency percentile with its intervals (docs/intervals.md)."""

    estimate: int
    """ns; the percentile of `latency_ns`. It lies in both intervals."""
    journal: int
    """ns; the same percentile from the journal, with clock readings between LoadGen's readings."""
    order_statistic: Sequence[int | None]
    """[low, high] in ns, for independent samples; an end is null if the run is too short for it."""
    block_interval: Sequence[int | None]
    """[low, high] in ns, for samples that resemble their neighbours; both ends are null if the run has too
    few independent parts."""
    block_interval_reason: NotRequired[str | None]
    """Why `block_interval` has no ends, and how much longer the run must be; null if it has both. Absent
    in results of earlier versions."""
    effective_samples: int
    """Number of independent samples that the run is equivalent to for this percentile, by the spread between
    blocks of neighbouring samples."""
    early_stopping: int | None
    """ns; with 99 % confidence, the true percentile is not above it. Null if there are too few queries."""


P999Interval = TypedDict("P999Interval", {"p99.9": PercentileInterval})


class Intervals(P999Interval):
    """Confidence intervals of the percentiles, with ranks from the journal and times on LoadGen's clock."""

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
    """Rates in samples/s, or in queries/s if `headline` is in queries/s."""

    asked: float | None
    """--target-qps; null outside Server, or if the harness scheduler sets no rate."""
    scheduled: float | None
    """The rate of the schedule drawn from the seed; null outside Server and after an interrupted run."""
    completed: float | None
    """Rate of completions including failed samples, as LoadGen counts; null if nothing was completed."""
    source: str
    """`LoadGen`, `harness scheduler`, `journal`, `interrupted, from the journal` or `log unusable, from the journal`."""


class CostParts(TypedDict):
    """The cost of the window, divided among its requests: at each moment equally among the requests in flight."""

    input: float
    """Cost of the time in which requests waited for their first token."""
    output: float
    """Cost of the time in which further tokens were generated."""
    idle: float
    """Cost of the time without a request in flight. `input`, `output` and `idle` add up to `total`."""
    per_million_computed_input_tokens: float | None
    """`input` per million tokens of prompts that were not in the server's cache; null if they are unknown."""
    per_million_output_tokens: float | None
    """`output` per million tokens of answers; null if they are unknown."""


class Cost(TypedDict):
    """The cost of the performance run by --price, over LoadGen's window. Each `per_million` number is the total divided
    by one count, so these numbers do not add up; `parts` do.
    """

    per_hour: float
    """--price of one hour. All amounts are in its currency."""
    total: float
    """Cost of the window."""
    per_million_samples: float
    """Cost per million answered samples."""
    per_million_input_tokens: float | None
    """Cost per million tokens of prompts; null if they are unknown."""
    per_million_output_tokens: float | None
    """Cost per million tokens of answers; null if they are unknown."""
    per_million_tokens: float | None
    """Cost per million tokens of prompts and answers together; null if one is unknown."""
    parts: NotRequired[CostParts]
    """The total by phase of the requests; missing without streams."""


class ComparedAnswers(TypedDict):
    """Comparison of answers of the performance run with answers of the accuracy run."""

    answers: int
    """Answers compared."""
    differing: int
    """Answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty if none differs."""
    misplaced: int
    """Logged answers that belong to a different sample than the journal has at their position."""


class Scored(TypedDict):
    """The score of the accuracy run."""

    metric: str
    """Name of the metric."""
    value: float
    """Score in `unit`."""
    unit: str
    """Unit of the metric, e.g. `%`."""
    samples: int
    """Samples scored."""
    target: float | None
    """The manifest's target in `unit`; null if the manifest has none for this metric."""
    lower_is_better: bool
    """True for errors. The target is then the largest value that may be quoted."""
    details: Mapping[str, float]
    """Further values of the metric by name."""
    compared: ComparedAnswers | None
    """Comparison with the performance run; null if that run logged no answers."""
    source: str
    """`LoadGen mlperf_log_accuracy.json`."""
    scorer: NotRequired[str]
    """Name and SHA-256 of MLCommons' program that computed the score; absent if the harness computed it."""
    scored_again: NotRequired[str]
    """Time of the score, ISO 8601, UTC, if `score` or `submit run` computed it after the run; absent otherwise."""


class NotScored(TypedDict):
    """Replaces a missing score."""

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
    """Time of the bare loops for one batch size."""

    batch: int
    """Samples in the batch."""
    before: float
    """Median in ns before the run."""
    after: float
    """Median in ns after the run."""


class AtOtherSpeed(TypedDict):
    """The reference dispatcher with a model of a different speed."""

    reference: float
    """The reference dispatcher's number in the section's `unit`."""
    ratio: float
    """`ours` divided by `reference`."""


@final
class OnAllCores(TypedDict):
    """The reference dispatcher with instances on all cores, each as fast as the plan's instances."""

    instances: int
    """Number of instances, each with as many threads as the plan's."""
    reference: float
    """The reference dispatcher's number in the section's `unit`."""


@final
class Reference(TypedDict):
    """Comparison of the run with a dispatcher without cost (docs/decisions/results.md), from bare loops."""

    service_ns: Sequence[ServiceTime]
    """Bare loops by batch size."""
    batches: int
    """Batches that the bare loops ran."""
    drift: float
    """Change of the bare loops' medians over the run. 0.1 means 10 % slower afterwards."""
    model_ratio: float
    """Time of the run's batches divided by the time of the bare loops for the same sizes."""
    null_backend_per_s: float | None
    """Highest samples/s of a VALID run of the null backend on this machine; null without such a run."""
    what: str
    """The compared number: a percentile or `samples/s`."""
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
    """Comparison with the bare loops before or after the run, whichever were slower; only if `drift` exceeds 10 %."""
    on_all_cores: NotRequired[OnAllCores]
    """Comparison with all cores; only if the plan leaves at least half of the cores idle, and not in streams."""
    queries: NotRequired[int]
    """Queries simulated; Server only."""
    of_queries: NotRequired[int]
    """Queries of the run; Server only."""
    lost_ns: NotRequired[Mapping[str, float]]
    """Stage -> time in ns beyond the reference's: the mean of the slowest queries, in streams the median; missing in Offline."""


@final
class NoReference(TypedDict):
    """Replaces a missing reference."""

    reason: str
    """Why the bare loops could not run."""


@final
class InputProbe(TypedDict):
    """Untimed batches after the run with changed inputs, repeated inputs and inputs of other samples."""

    samples: int
    """Samples in each batch."""
    rounds: int
    """Rounds: a batch with slightly changed values, the same batch again, then a batch of the dataset; 0 if the
    inputs cannot be changed."""
    changed_ns: float | None
    """Median time of the batches with changed values in ns; null without a round."""
    over_again: Sequence[float] | None
    """[low, median, high]: time with changed values divided by the time of the same batch repeated, with a
    99 % interval of the median; null with too few rounds."""
    over_seen: Sequence[float] | None
    """Ratio like `over_again`; its divisor is the time of a batch that the run may have seen."""
    rows: int
    """Samples whose answer was the same when repeated, and different for the inputs of a different sample."""
    by_index: int
    """Samples in `rows` whose answers followed the dataset index in the caller's frame, not the inputs."""
    raised: str
    """Last line of the exception that a batch raised; empty without an exception."""


@final
class PromptProbe(TypedDict):
    """Requests for one token after the run to the server of a language model: prompts with a new beginning, prompts
    of the run, and the changed prompts again.
    """

    rounds: int
    """Rounds of these three requests."""
    changed_ns: float | None
    """Median time with a new beginning in ns; null without a round."""
    over_seen: Sequence[float] | None
    """[low, median, high]: time with a new beginning divided by the time of the prompt as in the run, with a 99 %
    interval of the median; null with too few rounds."""
    over_again: Sequence[float] | None
    """Ratio like `over_seen`; its divisor is the time of the changed prompt when it is repeated."""
    refused: str
    """The server's answer if it refused changed prompts only; empty otherwise."""


@final
class NotProbed(TypedDict):
    """Replaces a missing probe."""

    reason: str
    """Why there is no probe."""


class SteadySeries(TypedDict):
    """Verdict on one series of a run."""

    verdict: str
    """steady, not steady or undecided. A series of rare events is steady if no change is certain."""
    change: float
    """Most probable change as a share, from the lowest to the highest level; negative if the level fell."""
    shape: str
    """Form of that change: step, ramp, wave or phase."""
    end_change: float
    """Distance of the last quarter's level above the mean, as a share."""
    half_width: float
    """Half width of the 95 % interval of the mean level, as a share. It allows for correlation longer than a batch."""
    correlation_s: float
    """Estimated time over which the level is correlated in s; 0 if it is not."""


class SteadyHost(TypedDict):
    """Rows of host.csv around a change."""

    lines: Sequence[int]
    """Line numbers of the last row before the change and of the first row after it."""
    changed: Mapping[str, Sequence[float]]
    """Column -> its means before and after, for the columns that changed most; per second for a counter."""


class SteadyChange(TypedDict):
    """The change of a run that was not steady."""

    series: str
    """The first series that changed, in the order of `series`."""
    size: float
    """Change as a share; negative if the level fell."""
    shape: str
    """step, ramp, wave or phase."""
    after_s: float
    """Start of the change in s after the start of the run."""
    at: str
    """Start of the change, ISO 8601, UTC."""
    host: SteadyHost | None
    """The machine at that time; null if host.csv has too few rows around it."""


class SteadyOfficial(TypedDict):
    """The steady window of MLPerf Endpoints' rule, with its own constants."""

    is_found: bool
    """Whether the rule finds a window that is long enough."""
    is_clean: bool
    """Whether the rule finds a window without a drift warning and without an anomaly."""
    reason: str | None
    """Reason for a missing window; null if there is a window."""
    passes: int
    """Passes over the samples that the run draws from."""
    warm_up_passes: int
    """Passes that the rule drops at the start."""
    window: Sequence[int] | None
    """First pass of the window and first pass after it, from 0; the longest candidate if all are too short; null
    without a candidate."""
    difference: str | None
    """How this verdict contradicts the harness's verdict; null if it does not."""


class Steady(TypedDict):
    """The referee's verdict on the steady state, from the journal (docs/intervals.md)."""

    verdict: str
    """steady, not steady or undecided."""
    needed_s: float | None
    """Estimated length in s of a run that would be decided; null if this run is decided."""
    warm_up_s: float
    """Time at the start in s that was left out, because the run had not reached its level."""
    warm_up_change: float
    """Change that this time causes in the whole run's mean latency, as a share; 0 if nothing was left out."""
    judged_s: float
    """Length in s of the rest of the run, which was judged."""
    series: Mapping[str, SteadySeries]
    """latency, rate, TTFT, TPOT, tail or failures -> its verdict. A series is missing if it has too few samples, or if
    a schedule sets the rate."""
    change: SteadyChange | None
    """The change that made the run not steady; otherwise null."""
    official: NotRequired[SteadyOfficial]
    """The official rule's verdict; missing for a run without times of tokens, or of more than 200 passes."""


class Queries(TypedDict):
    """Counts of the performance run."""

    planned: int
    """Queries of the load plan."""
    samples_per_query: int
    """Samples in each query."""
    counted_by_loadgen: int | None
    """Queries in LoadGen's log; null if the log has no count or the harness scheduler ran."""
    late: int | None
    """Queries above the latency bound; null outside Server, or without a bound."""
    samples_issued: int
    """Samples issued, from the journal."""
    samples_answered: int
    """Samples answered, from the journal."""
    samples_failed: int
    """Samples for which the backend raised an exception, from the journal."""
    expected_s: float | None
    """Expected duration in s; null if the plan has no estimate."""
    took_s: float | None
    """Time from the first scheduled time to the last completion in s; null if nothing was completed."""
    mean_batch: float | None
    """Mean samples per batch; null if nothing was completed."""


class RealTime(TypedDict):
    """Speed of frames compared with real time, for a model whose manifest states `frame_period_ms`."""

    frame_period_ns: int
    """Time from one frame of a sequence to the next."""
    streams: int | None
    """Sequences that played at a time in real time, from --streams; null in a run of whole sequences."""
    frames: int | None
    """Answered frames; null if sequences differ in length and were answered as a whole."""
    late_frames: int | None
    """Frames that were answered after the next frame of their stream was due; null without `streams`."""
    real_time_factor: float | None
    """Time of all batches in the backend, divided by the real time of all frames: below 1, one instance computes faster
    than one stream plays. Null if `frames` is null."""


class Arrivals(TypedDict):
    """Origin of the queries' scheduled times."""

    source: str
    """`LoadGen` or `harness scheduler`."""
    schedule_sha256: str | None
    """Digest of the file of --arrivals; null without it."""
    concurrency: int | None
    """Queries kept in flight by --concurrency; null without it."""
    streams: NotRequired[int]
    """Streams in real time of --streams; missing without it."""
    until: NotRequired[str]
    """Condition that ends the run, from --until: `steady`, or a width such as `2%`; missing without --until."""
