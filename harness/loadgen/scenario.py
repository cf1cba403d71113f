"""Defines the protocol of a scenario, which uses neither a clock nor LoadGen."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration
from harness.types import Quantity

LATE_ALLOWED = 10
"""Late queries that a quick Server run may have and still pass early stopping: its length follows."""

TURNS = 10
"""A closed loop issues at least TURNS x concurrency queries: the first `concurrency` of them arrive as
one burst, which must not dominate the run.
"""


class Load(NamedTuple):
    """Length and rate of a quick run."""

    query_count: int
    """Queries; Offline: samples."""
    expected_s: float | None
    """None where the user set query_count and the rate is unknown."""
    target_qps: float | None = None
    """Queries/s; Offline: samples/s."""


class Scenario(Protocol):
    """How queries arrive, how instances get them, and which number is the result."""

    @property
    def name(self) -> str:
        """The name on the command line, e.g. single-stream."""
        ...

    @property
    def loadgen_name(self) -> str:
        """MLPerf's name, e.g. SingleStream."""
        ...

    @property
    def dispatch(self) -> str:
        """inline, sliced or queued."""
        ...

    @property
    def percentile(self) -> float:
        """Default percentile of the SLO, in (0, 1)."""
        ...

    @property
    def streams(self) -> bool:
        """The next query comes when the previous one is answered."""
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
        """The latency in ns that the SLO bounds, and its key in the log.

        None where LoadGen itself judges the SLO, or had too few queries to report the latency.
        """
        ...
