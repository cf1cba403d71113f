"""Offline: all samples are there at once; the metric is samples/s."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S
from harness.loadgen.plan import Calibration
from harness.loadgen.scenario import Load, Scenario
from harness.types import Quantity

OFFICIAL_RATE_SHARE = 1.3
"""LoadGen sizes the run by the expected rate; too low a rate makes it shorter than 600 s."""

_PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


@dataclass(frozen=True, slots=True)
class _Offline:
    name: str = "offline"
    loadgen_name: str = "Offline"
    dispatch: str = "sliced"
    percentile: float = 0.99
    streams: bool = False
    default_slo: Slo | None = None

    def samples_per_query(self, config: RunConfig) -> int:
        return 1

    def needs_calibration(self, config: RunConfig) -> bool:
        return config.mlperf or config.queries is None

    def load(self, config: RunConfig, slo: Slo | None, found: Calibration | None) -> Load:
        rate = found.rate_per_s if found and found.rate_per_s else 0.0
        count = config.queries or max(1, ceil(config.duration_ns / NS_PER_S * rate))
        return Load(count, count / rate if rate else None)

    def user_conf(self, config: RunConfig, found: Calibration) -> Iterator[tuple[str, str]]:
        assert found.rate_per_s is not None
        yield "Offline.target_qps", f"{OFFICIAL_RATE_SHARE * found.rate_per_s:.6f}"

    def accuracy_user_conf(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def headline(self, log: Mapping[str, Any]) -> Quantity:
        key = "result_samples_per_second"
        return Quantity("throughput", log[key], "samples/s", f"LoadGen {key}")

    def slo_value_ns(self, log: Mapping[str, Any], percentile: float) -> tuple[int, str] | None:
        """LoadGen has no early-stopping estimate for its one query: the smallest percentile it
        reports that is not below the one asked for.
        """
        for text in _PERCENTILES:
            if float(text) >= percentile * 100 - 1e-9:
                key = f"result_{text}_percentile_latency_ns"
                return log[key], key
        return log["result_max_latency_ns"], "result_max_latency_ns"


OFFLINE: Scenario = _Offline()
