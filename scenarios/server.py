"""Server sends queries at random times (Poisson) with a given rate; the metric is the rate that meets the latency
bound.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from harness.core.config.parse import MIN_QPS, Slo
from harness.core.config.run_config import RunConfig
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.plan import Calibration, LoadPlan
from harness.loadgen.scenario import LATE_ALLOWED, TURNS, Axis, ExpectedLoad, Load, Scenario
from harness.types import Quantity

DEFAULT_SLO = Slo(0.99, 100 * NS_PER_MS)
"""LoadGen's default latency bound, for models whose manifest does not set one."""

DEMONSTRATION_SHARE = 0.25
DEMONSTRATION_LIMIT_QPS = 20_000.0
"""The default rate, which is meant for demonstrations, is a quarter of the calibrated capacity, but at most this limit.
"""

_RATE = Axis("target_qps", "queries/s", MIN_QPS, 1e9)


@dataclass(frozen=True, slots=True)
class _Server(Scenario):
    name: str = "server"
    loadgen_name: str = "Server"
    dispatch: str = "queued"
    options: frozenset[str] = frozenset(
        {
            *("target_qps", "dispatch", "batch_wait_ns"),
            *("arrivals", "concurrency", "streams", "load_hosts"),
        }
    )
    scheduled: bool = True
    rate_key: str | None = "result_completed_samples_per_sec"
    search_axis: Axis | None = _RATE
    percentile: float = DEFAULT_SLO.percentile
    default_slo: Slo | None = DEFAULT_SLO

    def needs_calibration(self, config: RunConfig) -> bool:
        if config.concurrency is not None:
            return config.queries is None
        has_times = config.arrivals is not None or config.streams is not None
        return config.target_qps is None and not has_times

    def rate(self, config: RunConfig, calibration: Calibration | None) -> float:
        if config.target_qps is not None:
            return config.target_qps
        assert calibration is not None
        assert calibration.rate_per_s is not None
        return min(DEMONSTRATION_SHARE * calibration.rate_per_s, DEMONSTRATION_LIMIT_QPS)

    def load(self, config: RunConfig, slo: Slo | None, calibration: Calibration | None) -> Load:
        if config.concurrency is not None:
            return self._in_flight(config, config.concurrency, slo, calibration)
        rate = self.rate(config, calibration)
        count = config.queries or self._count(config, slo, rate)
        return Load(count, count / rate, rate)

    def _in_flight(
        self, config: RunConfig, concurrency: int, slo: Slo | None, calibration: Calibration | None
    ) -> Load:
        """Returns the load for a closed loop, whose rate is measured, not set."""
        rate = (calibration.rate_per_s if calibration else None) or 0.0
        count = config.queries or max(self._count(config, slo, rate), TURNS * concurrency)
        return Load(count, count / rate if rate else None)

    def _count(self, config: RunConfig, slo: Slo | None, rate_per_s: float) -> int:
        least = queries_needed(LATE_ALLOWED, (slo or DEFAULT_SLO).percentile)
        return max(least, ceil(config.duration_ns / NS_PER_S * rate_per_s))

    def settings(self, plan: LoadPlan) -> Iterator[tuple[str, object]]:
        yield "server_target_qps", plan.target_qps
        if plan.percentile is not None:
            yield "server_target_latency_percentile", plan.percentile
        if plan.latency_bound_ns is not None:
            yield "server_target_latency_ns", plan.latency_bound_ns

    def expected_load(self, settings: Any, seconds: float) -> ExpectedLoad:
        rate = settings.server_target_qps
        return ExpectedLoad(
            seconds * rate,
            settings.server_target_latency_percentile,
            target_qps=rate,
            latency_bound_ns=settings.server_target_latency_ns,
        )

    def user_conf(self, config: RunConfig, calibration: Calibration) -> Iterator[tuple[str, str]]:
        yield f"{self.loadgen_name}.target_qps", f"{self.rate(config, calibration):.6f}"

    def accuracy_user_conf(self) -> Iterator[tuple[str, str]]:
        """Yields a high rate, because an accuracy run does not judge latency, and 50,000 samples at a low rate would
        take hours.
        """
        yield f"{self.loadgen_name}.target_qps", "100000"

    def headline(self, log: Mapping[str, Any]) -> Quantity:
        if (key := "result_completed_tokens_per_second") in log:
            return Quantity("completed tokens", log[key], "tokens/s", f"LoadGen {key}")
        key = "result_completed_samples_per_sec"
        return Quantity("completed queries", log[key], "queries/s", f"LoadGen {key}")

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        return None


SERVER = _Server()
