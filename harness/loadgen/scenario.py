"""What a scenario is: pure, no clock and no LoadGen."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration
from harness.types import Quantity

LATE_ALLOWED = 10
"""A quick Server run is long enough for this many late queries to pass early stopping."""

TURNS = 10
"""A closed loop whose length we choose gives each place in flight to so many queries at least: the
first ones come all at once, and a run of little else would be a burst."""


class Load(NamedTuple):
    """What a quick run asks of LoadGen. query_count: queries (Offline: samples). expected_s: None
    where the count was given and nothing tells how long that takes.
    """

    query_count: int
    expected_s: float | None
    target_qps: float | None = None


class Scenario(Protocol):
    """How queries arrive, how they are handed to the model, which number is the result.

    name: ours; loadgen_name: MLPerf's. dispatch: inline, sliced or queued.
    percentile: the default one of the SLO, in (0, 1).
    """

    @property
    def name(self) -> str: ...
    @property
    def loadgen_name(self) -> str: ...
    @property
    def dispatch(self) -> str: ...
    @property
    def percentile(self) -> float: ...
    @property
    def streams(self) -> bool: ...
    @property
    def default_slo(self) -> Slo | None:
        """For models whose manifest states none; None where an SLO exists only if given."""
        ...

    def samples_per_query(self, config: RunConfig) -> int: ...

    def needs_calibration(self, config: RunConfig) -> bool:
        """False when `load` uses nothing of it."""
        ...

    def load(self, config: RunConfig, slo: Slo | None, found: Calibration | None) -> Load: ...

    def user_conf(self, config: RunConfig, found: Calibration) -> Iterator[tuple[str, str]]:
        """(key, value) lines that size an official run, e.g. ('Server.target_qps', '20')."""
        ...

    def accuracy_user_conf(self) -> Iterator[tuple[str, str]]:
        """Lines that keep an official accuracy run short without touching its answers."""
        ...

    def headline(self, log: Mapping[str, Any]) -> Quantity | None:
        """MLPerf's metric of the scenario, out of LoadGen's detail log; None where it has none."""
        ...

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        """What an SLO is judged on and its key in the log; None where LoadGen judges it,
        or has not enough queries to tell.
        """
        ...
