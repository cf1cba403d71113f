"""Defines a scenario: how queries arrive, and which of LoadGen's numbers is the result.

A scenario has no clock and does not import LoadGen. Code that depends on how queries arrive reads an attribute of the
scenario, and not the scenario's name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.plan import Calibration, LoadPlan
from harness.types import Quantity

LATE_ALLOWED = 10
"""A quick Server run is long enough to pass early stopping even with this number of late queries."""

TURNS = 10
"""A closed loop whose length the harness chooses has at least TURNS times `concurrency` queries, so that the burst of
the first `concurrency` queries does not dominate the run.
"""


class Load(NamedTuple):
    """Size of a quick run."""

    query_count: int
    """Number of queries (Offline: samples)."""
    expected_s: float | None
    """Expected duration; None if the user set the number of queries and the rate is unknown."""
    target_qps: float | None = None
    """Rate in queries/s (Offline: samples/s)."""


class ExpectedLoad(NamedTuple):
    """Size of a run according to LoadGen's official settings."""

    queries: float
    """Number of queries (Offline: samples) that LoadGen generates, unless LoadGen's minimum number is larger."""
    percentile: float = 0.99
    samples_per_query: int = 1
    target_qps: float | None = None
    latency_bound_ns: int | None = None


class Axis(NamedTuple):
    """The load that `peak` raises until the SLO is missed."""

    field: str
    """Field of RunConfig that sets this load."""
    unit: str
    least: float
    most: float
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(ABC):
    """Defines how queries arrive, how they reach the model, and which number is the result."""

    name: str
    loadgen_name: str
    """MLPerf's name for the scenario, which is also LoadGen's name in TestScenario."""
    dispatch: str
    """How queries reach the instances. inline: the issuing thread answers. sliced: workers share one large query.
    queued: workers take waiting queries. See harness/run/measured/dispatch.
    """
    options: frozenset[str] = frozenset()
    """Fields of RunConfig that apply to this scenario but not to every scenario."""
    streams: bool = False
    """Whether each query is issued when the previous query is answered, so that one instance is enough."""
    scheduled: bool = False
    """Whether queries arrive on a schedule, at a rate in queries/s, even if earlier queries are not answered."""
    all_at_once: bool = False
    """Whether one query contains all samples. Latencies then show only how many samples were issued at once."""
    by_query: bool = False
    """Whether a query contains several samples, and LoadGen's latencies cover whole queries."""
    rate_key: str | None = None
    """Key of the rate of completed samples in LoadGen's log; None if the rate is taken from the journal."""
    search_axis: Axis | None = None
    """The load whose maximum `peak` searches; None if the scenario has no such load."""
    percentile: float = 0.99
    """Percentile for an SLO that does not name a percentile, in (0, 1)."""
    default_slo: Slo | None = None
    """The SLO of models whose manifest sets no SLO; None if the scenario needs no SLO."""

    def samples_per_query(self, config: RunConfig) -> int:  # noqa: ARG002 - other scenarios use it
        return 1

    def needs_calibration(self, config: RunConfig) -> bool:
        """Returns whether `load` uses the calibration."""
        return config.mlperf or config.queries is None

    @abstractmethod
    def load(self, config: RunConfig, slo: Slo | None, calibration: Calibration | None) -> Load: ...

    def settings(self, plan: LoadPlan) -> Iterator[tuple[str, object]]:  # noqa: ARG002 - other scenarios use it
        """Yields (field, value) pairs of LoadGen's TestSettings for a quick run, without the query count and the seeds."""
        return iter(())

    @abstractmethod
    def expected_load(self, settings: Any, seconds: float) -> ExpectedLoad:
        """Returns the size of an official run. settings: LoadGen's official settings. seconds: minimum duration."""

    @abstractmethod
    def user_conf(self, config: RunConfig, calibration: Calibration) -> Iterator[tuple[str, str]]:
        """Yields (key, value) pairs of user.conf that set an official run's size, such as ('Server.target_qps', '20')."""

    def accuracy_user_conf(self) -> Iterator[tuple[str, str]]:
        """Yields (key, value) pairs of user.conf that shorten an official accuracy run without changing answers."""
        return iter(())

    @abstractmethod
    def headline(self, log: Mapping[str, Any]) -> Quantity | None:
        """Returns MLPerf's metric for the scenario from LoadGen's detail log; None if the log does not contain it."""

    @abstractmethod
    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        """Returns the value that decides whether an SLO is met, and its name.

        Returns None if LoadGen judges the SLO, or has too few queries for an estimate.
        """


def scenario_named(name: str) -> Scenario:
    """Returns a shipped scenario. Raises a ConfigError for other names, because a file must not choose the code that
    runs.
    """
    if name not in registry.SCENARIOS:
        raise ConfigError(
            f"no scenario named {name!r}: choose from {', '.join(registry.SCENARIOS)}"
        )
    scenario: Scenario = registry.load("scenario", name)
    return scenario


def percent_text(fraction: float) -> str:
    """Returns a percentile in the form used by LoadGen's keys, such as '99.00' for 0.99."""
    return f"{fraction * 100:.2f}"


def percentile_key(scenario: Scenario, fraction: float) -> str:
    """Returns LoadGen's log key for the latency at a percentile."""
    unit = "per_query_latency_ns" if scenario.by_query else "latency_ns"
    return f"result_{percent_text(fraction)}_percentile_{unit}"


def latency_key(scenario: Scenario, statistic: str) -> str:
    """Returns LoadGen's log key for a latency statistic. statistic: min, max or mean."""
    unit = "query_latency_ns" if scenario.by_query else "latency_ns"
    return f"result_{statistic}_{unit}"
