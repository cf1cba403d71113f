"""The content of tune.json."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict


class AimEntry(TypedDict):
    """The fields of `candidates.Aim`."""

    what: str
    unit: str
    more_is_better: bool


class GainEntry(TypedDict):
    """The fields of `decision.Gain`."""

    ratio: float
    low: float
    high: float
    rounds: int


class LayoutEntry(TypedDict):
    """A layout that bare loops measured."""

    instances: int
    threads: int
    options: Mapping[str, str]
    """Backend options that were tried."""
    predicted: Mapping[str, float]
    """Forecasts for each largest batch size."""
    best_batch: int | None
    """Best largest batch size; None if no forecast exists."""
    passes: int
    service_ns: Mapping[str, float]
    """Median time of a batch, by batch size."""
    repetitions: int
    failed: str | None
    """Reason why the layout was not measured, or why it cannot meet the SLO."""
    larger_batches: str | None
    """Reason why larger batches were not measured."""


class FinalistEntry(TypedDict):
    """A plan that LoadGen judged."""

    plan: str
    is_default: bool
    predicted: float
    values: Mapping[str, float]
    """The judged number by round."""
    mean: float | None
    over_best: GainEntry | None
    """None for the best plan."""
    dropped: bool
    """Whether later rounds left the plan out, because it was significantly worse."""
    failed: str | None


class RunEntry(TypedDict):
    """A run by LoadGen."""

    plan: str
    round: int | None
    """None for the runs that find the rate."""
    rate_per_s: float | None
    value: float | None
    verdict: str
    reasons: Sequence[str]
    doubts: Sequence[str]
    folder: str
    """Path relative to the folder of the search."""


class Content(TypedDict):
    schema_version: int
    started: str
    """Start of the search in ISO 8601, UTC."""
    scenario: str
    backend: str
    model: str
    slo: str | None
    predicted: AimEntry
    """Number that ranks the plans in the forecast."""
    judged: AimEntry
    """Number that ranks the plans after LoadGen's runs."""
    rate_per_s: float | None
    """Rate of the judged runs, in queries/s; None if the scenario has no rate."""
    layouts: Sequence[LayoutEntry]
    finalists: Sequence[FinalistEntry]
    best: str | None
    second: str | None
    best_over_second: GainEntry | None
    second_is_beaten: NotRequired[bool | None]
    taken: str | None
    """The chosen plan; None until a plan is chosen."""
    taken_over_default: NotRequired[GainEntry | None]
    """None if the chosen plan is the plan without tuning, or if that plan was not judged."""
    runs: Sequence[RunEntry]
    ended_early: NotRequired[str]
    """Reason why the search ended before it was complete."""
