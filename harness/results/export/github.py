"""Exports numbers for benchmark-action/github-action-benchmark, tool `customSmallerIsBetter`.

Source: its README, "Examples": an array of objects with name, unit and value; range and extra are optional.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from harness.core.units import NS_PER_S
from harness.loadgen.scenario import scenario_named
from harness.results.answer import answer_of
from harness.results.export.numbers import Metric, codes, metrics
from harness.results.run_files import RunFiles


def write(run: RunFiles, out: TextIO) -> None:
    json.dump(list(entries(run.result)), out, indent=2)
    out.write("\n")


def entries(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields an entry for each number that is better when lower. Offline's rate becomes the time per sample.

    The numbers of an INVALID run have different names, so that they never continue a VALID series.
    """
    workload = f"{result['scenario']} {result['backend']} {result['model']}"
    is_valid = result["verdict"] == "VALID"
    extra = answer_of(result).headline
    if not is_valid:
        extra = f"{result['verdict']} ({codes(result, 'reasons')}): {extra}"
    all_at_once = scenario_named(result["scenario"]).all_at_once
    for metric in metrics(result):
        smaller = _smaller_is_better(metric, all_at_once=all_at_once)
        if smaller is not None:
            name = f"{workload}: {smaller.name}"
            yield {
                "name": name if is_valid else f"{result['verdict']} {name}",
                "unit": smaller.unit,
                "value": smaller.value,
                **_range(smaller),
                "extra": extra,
            }


def _smaller_is_better(metric: Metric, *, all_at_once: bool) -> Metric | None:
    """None for a score of which more is better, and for a rate that follows from arrivals or latencies."""
    if not metric.higher_is_better:
        return metric
    if metric.name == "throughput" and all_at_once and metric.value:
        return Metric("time per sample", NS_PER_S / metric.value, "ns")
    return None


def _range(metric: Metric) -> dict[str, str]:
    """The farther end of the interval: the action reads a text of the form `± NUMBER`."""
    if metric.interval is None:
        return {}
    return {"range": f"± {max(abs(end - metric.value) for end in metric.interval):.6g}"}
