"""Lists the numbers of result.json that the formats with one value a metric hold."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import PERCENTILES


class Metric(NamedTuple):
    """name: as `compare` has it, without its unit."""

    name: str
    value: float
    unit: str
    """ns, samples/s, J, or the unit of the score."""
    higher_is_better: bool = False
    interval: tuple[float, float] | None = None
    """[low, high] of a percentile, by blocks of the journal; None where an end is unknown."""


def metrics(result: Mapping[str, Any]) -> Iterator[Metric]:
    """result: the content of result.json. Offline has no latencies: they only reflect the samples issued at once."""
    rates = result.get("throughput_per_s") or {}
    if rates.get("completed") is not None:
        yield Metric("throughput", rates["completed"], "samples/s", higher_is_better=True)
    if not scenario_named(result["scenario"]).all_at_once:
        yield from _latencies(result)
    process = result.get("measured_process")
    if process:
        yield Metric("cpu", process["cpu_s_per_query"] * 1e9, "ns")
    for reading in (result.get("power") or {}).get("readings", ()):
        joules = reading["joules_per_sample"]
        yield Metric(f"joules_per_sample.{reading['source']}", joules, "J")
    score = result["accuracy"]
    if score["value"] is not None:
        higher = not score.get("lower_is_better", False)
        yield Metric("accuracy", score["value"], score["unit"], higher_is_better=higher)


def _latencies(result: Mapping[str, Any]) -> Iterator[Metric]:
    latency, intervals = (result.get(name) or {} for name in ("latency_ns", "latency_intervals_ns"))
    for name in ("mean", *PERCENTILES):
        if latency.get(name) is not None:
            low, high = (intervals.get(name) or {}).get("block_interval") or (None, None)
            interval = (low, high) if low is not None and high is not None else None
            yield Metric(name, latency[name], "ns", interval=interval)


def codes(result: Mapping[str, Any], kind: str) -> str:
    """kind: reasons or doubts. Their codes, separated by spaces."""
    return " ".join(entry["code"] for entry in result[kind])
