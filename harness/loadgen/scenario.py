"""Defines what a scenario is: how queries arrive, and which of LoadGen's numbers is the result.

A scenario is pure: it has no clock and imports no LoadGen. Whoever needs to know how a run's
queries came asks its scenario, never its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from harness.core import registry
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration, LoadPlan
from harness.types import Quantity

LATE_ALLOWED = 10
"""Late queries that a quick Server run may have and still pass early stopping: its length follows."""

TURNS = 10
"""A closed loop whose length we choose issues at least TURNS x concurrency queries: the first
`concurrency` of them arrive as one burst and must not dominate."""


class Load(NamedTuple):
    """The size of a quick run."""

    query_count: int
    """Queries (Offline: samples)."""

    expected_s: float | None
    """Forecast duration; None where the count was given and nothing tells how long it takes."""

    target_qps: float | None = None
    """Queries/s; Offline: samples/s."""


class ExpectedLoad(NamedTuple):
    """A run's size by LoadGen's official settings."""

    queries: float
    """Queries (Offline: samples) that LoadGen generates, unless its least count is larger."""

    percentile: float = 0.99
    samples_per_query: int = 1
    target_qps: float | None = None
    latency_bound_ns: int | None = None


class Axis(NamedTuple):
    """The load that `peak` raises until the SLO is missed."""

    field: str
    """The field in RunConfig."""

    unit: str
    least: float
    most: float
    whole: bool = False


class Scenario(Protocol):
    """How queries arrive, how they reach the model, and which number is the result."""

    @property
    def name(self) -> str: ...

    @property
    def loadgen_name(self) -> str:
        """MLPerf's name, that of LoadGen's TestScenario."""
        ...

    @property
    def dispatch(self) -> str:
        """inline: the issuing thread answers. sliced: workers share one large query. queued:
        workers take what waits (harness/run/measured/dispatch).
        """
        ...

    @property
    def options(self) -> frozenset[str]:
        """The fields of RunConfig that only some scenarios take, and this one does."""
        ...

    @property
    def streams(self) -> bool:
        """The next query comes when the last one is answered, so one instance is enough."""
        ...

    @property
    def scheduled(self) -> bool:
        """Queries come on a schedule of their own, at a rate in queries/s, answered or not."""
        ...

    @property
    def all_at_once(self) -> bool:
        """One query holds all samples. Its latencies only say how much was asked for at once."""
        ...

    @property
    def by_query(self) -> bool:
        """A query has several samples, and LoadGen's latencies are those of whole queries."""
        ...

    @property
    def rate_key(self) -> str | None:
        """The completed samples/s in LoadGen's log; None where the journal's rate is taken."""
        ...

    @property
    def search_axis(self) -> Axis | None:
        """None where there is no load to find."""
        ...

    @property
    def percentile(self) -> float:
        """The percentile of an SLO that names none, in (0, 1)."""
        ...

    @property
    def default_slo(self) -> Slo | None:
        """The SLO for models whose manifest states none; None: no SLO unless the user sets one."""
        ...

    def samples_per_query(self, config: RunConfig) -> int: ...

    def needs_calibration(self, config: RunConfig) -> bool:
        """False when `load` does not use the calibration."""
        ...

    def load(self, config: RunConfig, slo: Slo | None, calibration: Calibration | None) -> Load: ...

    def settings(self, plan: LoadPlan) -> Iterator[tuple[str, object]]:
        """(field of LoadGen's TestSettings, value) of a quick run, beside its count and seeds."""
        ...

    def expected_load(self, settings: Any, seconds: float) -> ExpectedLoad:
        """settings: TestSettings with the official values. seconds: the least duration."""
        ...

    def user_conf(self, config: RunConfig, calibration: Calibration) -> Iterator[tuple[str, str]]:
        """(key, value) lines that size an official run, e.g. ('Server.target_qps', '20')."""
        ...

    def accuracy_user_conf(self) -> Iterator[tuple[str, str]]:
        """Lines that shorten an official accuracy run and do not change its answers."""
        ...

    def headline(self, log: Mapping[str, Any]) -> Quantity | None:
        """MLPerf's metric of the scenario from LoadGen's detail log; None where the log lacks it."""
        ...

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        """The value that an SLO is judged on, and its key in the log.

        None where LoadGen judges the SLO, or has too few queries for an estimate.
        """
        ...


def scenario_named(name: str) -> Scenario:
    scenario: Scenario = registry.load("scenario", name)
    return scenario


def percentile_key(scenario: Scenario, percent: str) -> str:
    """The percentile's latency in LoadGen's log. percent: with two decimals, as '99.00'."""
    unit = "per_query_latency_ns" if scenario.by_query else "latency_ns"
    return f"result_{percent}_percentile_{unit}"


def latency_key(scenario: Scenario, statistic: str) -> str:
    """The statistic of the latencies in LoadGen's log: min, max or mean."""
    unit = "query_latency_ns" if scenario.by_query else "latency_ns"
    return f"result_{statistic}_{unit}"
