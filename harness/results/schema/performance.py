"""Documents the sections of result.json about latency, rates, score, stages and queries."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, final

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

Number = int | float


P999 = TypedDict("P999", {"p99.9": int | None})


class Latency(P999):
    """Latency of queries in ns (in Offline, of samples). The values come from LoadGen after a complete run, and
    otherwise from the journal.
    """

    mean: int | None
    """ns."""
    min: int | None
    """ns."""
    max: int | None
    """ns."""
    p50: int | None
    """ns; a percentile is null if LoadGen's log lacks it."""
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
    journal`.
    """


class PercentileInterval(TypedDict):
    """A latency percentile with its intervals (docs/intervals.md)."""

    estimate: int
    """ns; the percentile of `latency_ns`, which lies in both intervals."""
    journal: int
    """ns; the same percentile from the journal, whose clock readings lie between LoadGen's readings."""
    order_statistic: Sequence[int | None]
    """[low, high] in ns, for independent samples. An end is null if the run is too short for this end."""
    block_interval: Sequence[int | None]
    """[low, high] in ns, for samples that resemble their neighbours. Both ends are null if the run has too few
    independent parts.
    """
    block_interval_reason: NotRequired[str | None]
    """Reason why `block_interval` has no ends, and how much longer the run must be; null if it has both ends. Missing
    in results of earlier versions.
    """
    effective_samples: int
    """Number of independent samples that would determine this percentile as precisely as the run does. This number
    comes from the spread between blocks of neighbouring samples.
    """
    early_stopping: int | None
    """ns; with 99 % confidence, the true percentile is not above this value. Null with too few queries."""


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
    """Rates in samples/s, or in queries/s if the unit of `headline` is queries/s."""

    asked: float | None
    """Value of --target-qps; null outside Server, or if the harness scheduler does not set a rate."""
    scheduled: float | None
    """Rate of the schedule that was drawn from the seed; null outside Server and after an interrupted run."""
    completed: float | None
    """Rate of completions. Failed samples count as completed, as in LoadGen. Null if nothing was completed."""
    source: str
    """`LoadGen`, `harness scheduler`, `journal`, `interrupted,
    from the journal` or `log unusable, from the journal`.
    """


class CostParts(TypedDict):
    """Cost of the window, divided among its requests. At each moment, the cost is divided equally among the requests in
    flight.
    """

    input: float
    """Cost of the time in which requests waited for their first token."""
    output: float
    """Cost of the time in which later tokens were generated."""
    idle: float
    """Cost of the time without a request in flight. The sum of `input`, `output` and `idle` is `total`."""
    per_million_computed_input_tokens: float | None
    """`input` per million prompt tokens that were not in the server's cache; null if these tokens are unknown."""
    per_million_output_tokens: float | None
    """`output` per million answer tokens; null if the tokens are unknown."""


class Cost(TypedDict):
    """Cost of the performance run at the rate of --price, over LoadGen's window. Each `per_million` number divides the
    same total by one count, so these numbers do not add up to the total, but the `parts` do.
    """

    per_hour: float
    """Price of one hour from --price. All amounts are in the currency of this price."""
    total: float
    """Cost of the window."""
    per_million_samples: float
    """Cost per million answered samples."""
    per_million_input_tokens: float | None
    """Cost per million prompt tokens; null if the tokens are unknown."""
    per_million_output_tokens: float | None
    """Cost per million answer tokens; null if the tokens are unknown."""
    per_million_tokens: float | None
    """Cost per million prompt and answer tokens together; null if one count is unknown."""
    parts: NotRequired[CostParts]
    """The total by phase of the requests; missing without streams."""


class ComparedAnswers(TypedDict):
    """Comparison of the performance run's answers with the accuracy run's answers."""

    answers: int
    """Number of compared answers."""
    differing: int
    """Number of answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty if no pair differs."""
    misplaced: int
    """Number of logged answers that belong to a different sample than the one in the journal at the same position."""


class Scored(TypedDict):
    """The score of the accuracy run."""

    metric: str
    """Name of the metric."""
    value: float
    """Score in `unit`."""
    unit: str
    """Unit of the metric, such as `%`."""
    samples: int
    """Number of scored samples."""
    target: float | None
    """The manifest's target in `unit`; null if the manifest has no target for this metric."""
    lower_is_better: bool
    """True for error metrics. The target is then the largest value that may be quoted."""
    details: Mapping[str, float]
    """Further values of the metric by name."""
    compared: ComparedAnswers | None
    """Comparison with the performance run; null if the performance run did not log answers."""
    source: str
    """`LoadGen mlperf_log_accuracy.json`."""
    scorer: NotRequired[str]
    """Name and SHA-256 of MLCommons' program that computed the score; missing if the harness computed it."""
    scored_again: NotRequired[str]
    """Time of the score, in ISO 8601, UTC, if `score` or `submit run` computed it after the run; otherwise missing."""


class NotScored(TypedDict):
    """Replaces a missing score."""

    value: None
    """Always null."""
    reason: str
    """Reason why the score is missing."""


class Stage(TypedDict):
    """Time of samples in one stage, from the journal."""

    p50: Number
    """ns."""
    p99: Number
    """ns."""
    share: float
    """This stage's share of the latency of all samples, in [0, 1]."""


class ServiceTime(TypedDict):
    """Times per batch of one size in the bare loops, which call only the model."""

    batch: int
    """Samples in the batch."""
    before: float
    """Median in ns before the run."""
    after: float
    """Median in ns after the run."""


class AtOtherSpeed(TypedDict):
    """The reference dispatcher with a model that runs at a different speed."""

    reference: float
    """The reference dispatcher's number in the section's `unit`."""
    ratio: float
    """`ours` divided by `reference`."""


@final
class OnAllCores(TypedDict):
    """The reference dispatcher with instances on all cores. Each instance is as fast as an instance of the plan."""

    instances: int
    """Number of instances, each with as many threads as an instance of the plan."""
    reference: float
    """The reference dispatcher's number in the section's `unit`."""


@final
class Reference(TypedDict):
    """Comparison of the run with a dispatcher that costs nothing (docs/decisions/results.md), based on bare loops."""

    service_ns: Sequence[ServiceTime]
    """Times of the bare loops by batch size."""
    batches: int
    """Number of batches that the bare loops ran."""
    drift: float
    """Change in the bare loops' medians over the run. 0.1 means that the loops were 10 % slower after the run."""
    model_ratio: float
    """Time of the run's batches divided by the time that bare loops take for the same sizes."""
    null_backend_per_s: float | None
    """Highest samples/s of any VALID run of the null backend on this machine; null without such a run."""
    what: str
    """Name of the compared number: a percentile or `samples/s`."""
    unit: str
    """`ns` or `samples/s`."""
    reference: float
    """The reference dispatcher's number, in `unit`."""
    ours: float
    """The run's number, in `unit`, from the journal."""
    ratio: float
    """`ours` divided by `reference`."""
    at_run_speed: AtOtherSpeed
    """Comparison at the speed that the model had during the run."""
    at_slower_loops: NotRequired[AtOtherSpeed]
    """Comparison with the slower of the bare loops before and after the run; present only if `drift` exceeds 10 %."""
    on_all_cores: NotRequired[OnAllCores]
    """Comparison with instances on all cores; missing in streams, or if fewer than half of the cores are idle."""
    queries: NotRequired[int]
    """Number of simulated queries; only in Server."""
    of_queries: NotRequired[int]
    """Number of queries in the run; only in Server."""
    lost_ns: NotRequired[Mapping[str, float]]
    """Time in ns per stage beyond the reference's time: the mean of the slowest queries or, in streams, the median.
    Missing in Offline.
    """


@final
class NoReference(TypedDict):
    """Replaces a missing reference."""

    reason: str
    """Reason why the bare loops could not run."""


@final
class InputProbe(TypedDict):
    """Untimed batches after the run, with changed inputs, repeated inputs and inputs of other samples."""

    samples: int
    """Samples in each batch."""
    rounds: int
    """Number of rounds. A round has a batch with slightly changed values, the same batch again, and a batch of the
    dataset. 0 if the inputs cannot be changed.
    """
    changed_ns: float | None
    """Median time in ns of the batches with changed values; null without a round."""
    over_again: Sequence[float] | None
    """[low, median, high] of a ratio: time of the batch with changed values divided by the time of the same batch when
    repeated. Low and high bound a 99 % interval of the median. Null with too few rounds.
    """
    over_seen: Sequence[float] | None
    """[low, median, high] of a ratio: time of the batch with changed values divided by the time of a batch that the run
    may have seen.
    """
    rows: int
    """Number of samples whose answer stayed the same when repeated,
    but changed with the inputs of a different sample.
    """
    by_index: int
    """Number of samples in `rows` whose answers followed the dataset index, read from the caller's stack frame, instead
    of the inputs.
    """
    raised: str
    """Last line of the exception from a batch; empty without an exception."""


@final
class PromptProbe(TypedDict):
    """Requests for one token to the server of a language model, sent after the run. The requests contain prompts with a
    new beginning, prompts of the run, and the changed prompts again.
    """

    rounds: int
    """Number of rounds. Each round contains one request of each kind."""
    changed_ns: float | None
    """Median time in ns of a prompt with a new beginning; null without a round."""
    over_seen: Sequence[float] | None
    """[low, median, high] of a ratio: time with a new beginning divided by the time of the run's prompt. Low and high
    bound a 99 % interval of the median. Null with too few rounds.
    """
    over_again: Sequence[float] | None
    """[low, median, high] of a ratio: time with a new beginning divided by the time of the same changed prompt when
    repeated.
    """
    refused: str
    """The server's answer if it refused only the changed prompts; otherwise empty."""


@final
class NotProbed(TypedDict):
    """Replaces a missing probe."""

    reason: str
    """Reason why the probe is missing."""


class SteadySeries(TypedDict):
    """Verdict on one series of a run."""

    verdict: str
    """steady, not steady or undecided. A series of rare events is steady unless a change is significant."""
    change: float
    """Most probable change as a share, from the lowest to the highest level; negative if the level fell."""
    shape: str
    """Form of the change: step, ramp, wave or phase."""
    end_change: float
    """Level of the last quarter minus the mean level, as a share of the mean."""
    half_width: float
    """Half width of the 95 % interval of the mean level, as a share. The half width allows for correlation between
    batches.
    """
    correlation_s: float
    """Estimated time in s over which the level is correlated; 0 without correlation."""


class SteadyHost(TypedDict):
    """Rows of host.csv around a change."""

    lines: Sequence[int]
    """Line numbers of the last row before the change and the first row after it."""
    changed: Mapping[str, Sequence[float]]
    """Means before and after the change, for the columns that changed most. For a counter, the means are per second."""


class SteadyChange(TypedDict):
    """The change that made the run not steady."""

    series: str
    """The first series that changed, in the order of `series`."""
    size: float
    """Change as a share; negative if the level fell."""
    shape: str
    """step, ramp, wave or phase."""
    after_s: float
    """Start of the change in s after the start of the run."""
    at: str
    """Start of the change in ISO 8601, UTC."""
    host: SteadyHost | None
    """The machine around the change; null if host.csv has too few rows around the change."""


class SteadyOfficial(TypedDict):
    """The steady window under the MLPerf Endpoints rule, whose constants differ from the harness's."""

    is_found: bool
    """Whether the rule finds a window of sufficient length."""
    is_clean: bool
    """Whether the rule finds a window without a drift warning and without an anomaly."""
    reason: str | None
    """Reason why the window is missing; null if a window was found."""
    passes: int
    """Number of passes over the samples that the run draws from."""
    warm_up_passes: int
    """Number of passes that the rule drops at the start."""
    window: Sequence[int] | None
    """First pass of the window and first pass after it, counted from 0. The longest candidate if all windows are too
    short; null without a candidate.
    """
    difference: str | None
    """How this verdict contradicts the harness's verdict; null without a contradiction."""


class Steady(TypedDict):
    """Whether the run was steady, judged from the journal (docs/steady.md)."""

    verdict: str
    """steady, not steady or undecided."""
    needed_s: float | None
    """Estimated length in s of a run whose verdict would be decided; null if this run's verdict is decided."""
    warm_up_s: float
    """Time in s at the start that was left out because the run had not reached its level yet."""
    warm_up_change: float
    """Change in the whole run's mean latency, as a share, that the time in `warm_up_s` causes; 0 if nothing was left
    out.
    """
    judged_s: float
    """Length in s of the judged part of the run."""
    series: Mapping[str, SteadySeries]
    """Verdict per series: latency, rate, TTFT, TPOT, tail or failures. A series is missing if it has too few samples,
    or if a schedule sets the rate.
    """
    change: SteadyChange | None
    """The change that made the run not steady; otherwise null."""
    official: NotRequired[SteadyOfficial]
    """Verdict of the official rule; missing for a run without token times or with more than 200 passes."""


class Queries(TypedDict):
    """Counts of the performance run."""

    planned: int
    """Number of queries in the load plan."""
    samples_per_query: int
    """Number of samples per query."""
    counted_by_loadgen: int | None
    """Number of queries in LoadGen's log; null if the log lacks it or if the harness scheduler ran."""
    late: int | None
    """Number of queries above the latency bound; null outside Server or without a bound."""
    samples_issued: int
    """Number of issued samples, from the journal."""
    samples_answered: int
    """Number of answered samples, from the journal."""
    samples_failed: int
    """Number of samples for which the backend raised an exception, from the journal."""
    expected_s: float | None
    """Expected duration in s; null if the plan has no estimate."""
    took_s: float | None
    """Time in s from the first scheduled time to the last completion; null if nothing was completed."""
    mean_batch: float | None
    """Mean samples per batch; null if nothing was completed."""


class RealTime(TypedDict):
    """The model's speed compared with the frames of a real-time sequence; requires `frame_period_ms` in the manifest."""

    frame_period_ns: int
    """Time from one frame of a sequence to the next."""
    streams: int | None
    """Number of sequences that played in real time at once, from --streams; null in a run of whole sequences."""
    frames: int | None
    """Number of answered frames; null if sequences of different lengths were answered as a whole."""
    late_frames: int | None
    """Number of frames that were answered after the next frame of their stream was due; null without `streams`."""
    real_time_factor: float | None
    """Time of all batches in the backend, divided by the real time of all frames. If the factor is below 1, one
    instance computes faster than one stream plays. Null if `frames` is null.
    """


class Arrivals(TypedDict):
    """Origin of the queries' scheduled times."""

    source: str
    """`LoadGen` or `harness scheduler`."""
    schedule_sha256: str | None
    """Digest of the file of --arrivals; null without such a file."""
    concurrency: int | None
    """Number of queries that --concurrency keeps in flight; null without this option."""
    streams: NotRequired[int]
    """Number of real-time streams from --streams; missing without this option."""
    until: NotRequired[str]
    """Condition that ends the run, from --until: `steady`, or a width such as `2%`. Missing without this option."""
