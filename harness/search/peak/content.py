"""The content of peak.json."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from harness.results.slos.shown import Attainment


class Probe(Attainment):
    """One run in a search."""

    kind: str
    """calibration, probe or full."""
    load: float | None
    """The run's load; None for a calibration that ended before it found a rate."""
    passed: bool | None
    """Whether the run passed; None for a calibration, and for a run that ended the search."""
    ended: str | None
    """Code of the reason why the run ended the search; None if the run did not end it."""
    queries: int
    """Number of planned queries, or of answered queries if the run ended the search."""
    answered: NotRequired[int | None]
    """Number of answered queries; absent in results of earlier versions."""
    late: int | None
    """Number of queries that exceeded the SLO's bound."""
    latency_ns: Mapping[str, Any] | None
    """LoadGen's percentiles of the query latency; None if nothing was completed."""
    scheduled_per_s: float | None
    """Rate in queries/s of the schedule drawn from the seed; with --streams, frames/s; None if the load has no schedule."""
    completed_per_s: float | None
    """Completed queries/s."""
    mean_batch: float | None
    """Mean number of samples per batch."""
    busy_share: NotRequired[float | None]
    """Share of the time during which an instance computed, derived from a batch's median stage times."""
    model_per_s: NotRequired[float | None]
    """The model's rate in samples/s without a dispatcher, from the bare loops before and after the run."""
    verdict: str
    reasons: Sequence[str]
    doubts: Sequence[str]
    seconds: float
    """Wall time of the whole run."""
    folder: str
    """Path relative to the search's folder."""
    goodput_per_s: NotRequired[float | None]
    """Rate of queries that met every SLO, in queries/s."""
    steady: NotRequired[str | None]
    """`steady`, `not steady` or `undecided`; None if the run has too few queries."""
    token_times: NotRequired[Mapping[str, int] | None]
    """A language model's token times. The keys are the fields of harness/search/token_times.py. None if the run has no
    streams.
    """


class Content(TypedDict):
    schema_version: int
    started: str
    """Start of the search in ISO 8601, UTC."""
    scenario: str
    backend: str
    model: str
    slo: str
    """The SLOs, separated by spaces."""
    unit: str
    """Unit of the loads, such as `queries/s`."""
    finished: bool
    peak: float | None
    """Highest load at which a full run was VALID; None during the search, or if no load passed."""
    failed_above: float | None
    """Lowest failed load above the peak; None if no load failed there."""
    failed_above_kind: str | None
    """`full` if a full run failed there; otherwise `probe`, which may be wrong."""
    ended_early: str | None
    """Reason why the search stopped early, or has no peak; None if it was completed with a peak."""
    fastest_ns: NotRequired[int | None]
    """Latency of the fastest answer, if even that answer missed the SLO; otherwise None."""
    probes: Sequence[Probe]
    """All runs of the search, in order."""
    warnings: Sequence[str]
