"""The content of sweep.json."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from harness.results.slos.shown import Attainment


class Point(Attainment):
    """One run of a sweep. A number is None if neither LoadGen nor the journal contains it."""

    rate_per_s: float
    """Requested rate in queries/s."""
    share: float | None
    """Requested rate as a share of the peak; None if the peak is unknown."""
    scheduled_per_s: float | None
    """Offered rate in queries/s, from the schedule that LoadGen drew for the requested rate."""
    completed_per_s: float | None
    """Completed queries/s."""
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    mean_ns: float | None
    mean_batch: float | None
    """Mean number of samples per batch."""
    busy_share: NotRequired[float | None]
    """Share of the time during which an instance computed."""
    model_per_s: NotRequired[float | None]
    """The model's rate in queries/s without a dispatcher, from the bare loops before and after the run."""
    queries: int
    late: int | None
    """Number of queries that exceeded the SLO's bound."""
    verdict: str
    reasons: Sequence[str]
    doubts: Sequence[str]
    folder: str
    """Path relative to the sweep's folder."""
    goodput_per_s: NotRequired[float | None]
    """Rate of queries that met every SLO, in queries/s."""
    wait_ns: NotRequired[float | None]
    """Mean time until an instance or the client took the query."""
    steady: NotRequired[str | None]
    """`steady`, `not steady` or `undecided`; None if the run has too few queries."""
    cache: NotRequired[str]
    """State of the server's cache before the run: cold, warm, or the share of tokens that all prompts have in common,
    such as 50%. "" if --cache is not set.
    """
    cached_share: NotRequired[float | None]
    """Share of prompt tokens that came from the cache, as reported by the server."""
    token_times: NotRequired[Mapping[str, int] | None]
    """A language model's token times. The keys are the fields of harness/search/token_times.py. None if the run has no
    streams.
    """
    tokens_per_s: NotRequired[float | None]
    """Rate of answer tokens over all queries, in tokens/s; None if unknown."""
    per_million: NotRequired[float | None]
    """Price of a million output tokens, in the currency of --price; if the model has no tokens, price of a million
    samples.
    """


class Summary(TypedDict):
    """Result of the points in one state of the server's cache."""

    knee: float | None
    highest_valid: float | None


class Content(TypedDict):
    schema_version: int
    config: Mapping[str, Any]
    model: str
    slo: str | None
    """The SLOs, separated by spaces; None if the sweep has none."""
    peak: float | None
    """Rate in queries/s that counts as 100 %, from --peak or a search; otherwise None."""
    peak_is_measured: bool
    """Whether a search found the peak to be VALID."""
    highest_valid: float | None
    """Highest requested rate that was VALID; None if no rate was VALID."""
    knee: float | None
    by_cache: NotRequired[Mapping[str, Summary]]
    """By state of the server's cache; empty if --cache is not set."""
    fastest_ns: NotRequired[float | None]
    """Latency of the fastest answer, if the sweep ended because even that answer missed the SLO."""
    left: NotRequired[int]
    """Number of requested rates that were not measured, because the sweep is in progress or was stopped."""
    points: Sequence[Point]
