"""Implements single-stream and multi-stream, which send each query as soon as the previous query has completed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.plan import Calibration, LoadPlan
from harness.loadgen.scenario import ExpectedLoad, Load, Scenario
from harness.types import Quantity

OFFICIAL_LATENCY_SHARE = 0.4
"""LoadGen generates (2 x 600 s / expected latency) queries, and stops with an error once it has issued all of them.
With an expected latency of 0.4 x the calibrated latency, LoadGen generates enough queries even if the run is up to five
times as fast.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Scenario):
    dispatch: str = "inline"
    streams: bool = True
    default_samples_per_query: int
    early_stopping_key: str
    """Key of the estimate for the target percentile in LoadGen's log, in ns."""
    settings_prefix: str
    """Prefix of the stream's field names in LoadGen's TestSettings."""

    def samples_per_query(self, config: RunConfig) -> int:
        return config.samples_per_query or self.default_samples_per_query

    def load(self, config: RunConfig, slo: Slo | None, calibration: Calibration | None) -> Load:
        """Returns a load with at least the number of queries that the early-stopping estimate needs if one query is an
        outlier.
        """
        latency_ns = calibration.latency_ns if calibration else None
        latency_s = latency_ns / NS_PER_S if latency_ns else 0.0
        if calibration is not None and calibration.issued_per_s:
            latency_s = 1 / calibration.issued_per_s
        count = config.queries
        if count is None:
            least = queries_needed(1, slo.percentile if slo else self.percentile)
            count = max(least, ceil(config.duration_ns / NS_PER_S / max(latency_s, 1e-6)))
        return Load(count, count * latency_s or None)

    def settings(self, plan: LoadPlan) -> Iterator[tuple[str, object]]:
        if self.by_query:
            yield f"{self.settings_prefix}_samples_per_query", plan.samples_per_query
        if plan.percentile is not None:
            yield f"{self.settings_prefix}_target_latency_percentile", plan.percentile

    def expected_load(self, settings: Any, seconds: float) -> ExpectedLoad:
        prefix = self.settings_prefix
        expected_ns = getattr(settings, f"{prefix}_expected_latency_ns")
        samples = getattr(settings, f"{prefix}_samples_per_query") if self.by_query else 1
        percentile = getattr(settings, f"{prefix}_target_latency_percentile")
        return ExpectedLoad(2 * seconds * NS_PER_S / expected_ns, percentile, samples)

    def user_conf(self, config: RunConfig, calibration: Calibration) -> Iterator[tuple[str, str]]:
        assert calibration.latency_ns is not None
        expected_ms = OFFICIAL_LATENCY_SHARE * calibration.latency_ns / NS_PER_MS
        yield f"{self.loadgen_name}.target_latency", f"{expected_ms:.6f}"

    def headline(self, log: Mapping[str, Any]) -> Quantity | None:
        percent = log["effective_target_latency_percentile"] * 100
        if self._estimates_tokens(log):
            key = f"result_{percent:.2f}_percentile_latency_ns"
            if key not in log:
                return None
            return Quantity(f"p{percent:.10g} latency", log[key], "ns", f"LoadGen {key}")
        if not self._estimate_ns(log):
            return None
        return Quantity(
            f"p{percent:.10g} latency, early-stopping estimate",
            log[self.early_stopping_key],
            "ns",
            f"LoadGen {self.early_stopping_key}",
        )

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        estimate_ns = 0 if self._estimates_tokens(log) else self._estimate_ns(log)
        name = f"early-stopping estimate of the p{percentile * 100:.10g} latency"
        return (estimate_ns, name) if estimate_ns else None

    def _estimates_tokens(self, log: Mapping[str, Any]) -> bool:
        """Returns whether LoadGen's single-stream estimate refers to the time to the first token."""
        return bool(log.get("requested_use_token_latencies")) and not self.by_query

    def _estimate_ns(self, log: Mapping[str, Any]) -> int:
        """Returns LoadGen's estimate; 0 if LoadGen had too few queries for an estimate and therefore reports the run as
        INVALID.
        """
        return int(log.get(self.early_stopping_key) or 0)
