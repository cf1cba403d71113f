"""Offline sends all samples at once; the metric is samples/s."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S
from harness.loadgen.plan import Calibration
from harness.loadgen.scenario import ExpectedLoad, Load, Scenario
from harness.types import Quantity

OFFICIAL_RATE_SHARE = 1.3
"""In an official run, LoadGen is configured with this multiple of the expected rate. LoadGen derives the run's size
from the configured rate, and if this rate is too low, the run ends before 600 s.
"""

_PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


@dataclass(frozen=True, slots=True)
class _Offline(Scenario):
    name: str = "offline"
    loadgen_name: str = "Offline"
    dispatch: str = "sliced"
    all_at_once: bool = True
    rate_key: str | None = "result_samples_per_second"

    def load(self, config: RunConfig, slo: Slo | None, calibration: Calibration | None) -> Load:
        known = (calibration.issued_per_s or calibration.rate_per_s) if calibration else None
        rate = known or 0.0
        count = config.queries or max(1, ceil(config.duration_ns / NS_PER_S * rate))
        return Load(count, count / rate if rate else None)

    def expected_load(self, settings: Any, seconds: float) -> ExpectedLoad:
        rate = settings.offline_expected_qps
        return ExpectedLoad(1.1 * seconds * rate, target_qps=rate)

    def user_conf(self, config: RunConfig, calibration: Calibration) -> Iterator[tuple[str, str]]:
        assert calibration.rate_per_s is not None
        yield "Offline.target_qps", f"{OFFICIAL_RATE_SHARE * calibration.rate_per_s:.6f}"

    def headline(self, log: Mapping[str, Any]) -> Quantity:
        if (key := "result_tokens_per_second") in log:
            return Quantity("throughput", log[key], "tokens/s", f"LoadGen {key}")
        key = "result_samples_per_second"
        return Quantity("throughput", log[key], "samples/s", f"LoadGen {key}")

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        """Returns the latency at the smallest percentile in the log that reaches the SLO's percentile, and the name of
        this latency. Returns the largest latency if no percentile is large enough.

        LoadGen does not make an early-stopping estimate for a single query.
        """
        for text in _PERCENTILES:
            if float(text) >= percentile * 100 - 1e-9:
                return log[f"result_{text}_percentile_latency_ns"], f"p{float(text):.10g} latency"
        return log["result_max_latency_ns"], "largest latency"


OFFLINE = _Offline()
