"""Exports numbers for benchmark-action/github-action-benchmark and its tool `customSmallerIsBetter`.

Source: the action's README, "Examples", which shows an array of objects with name, unit and value; range and extra are
optional.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, TextIO

from harness.core.units import NS_PER_S
from harness.loadgen.scenario import scenario_named
from harness.results.answer import answer_of
from harness.results.numbers import Number, numbers
from harness.results.run_files import RunFiles


def write(run: RunFiles, out: TextIO) -> None:
    json.dump(list(entries(run)), out, indent=2)
    out.write("\n")


def entries(run: RunFiles) -> Iterator[dict[str, Any]]:
    """Yields an entry for each number that is better when smaller. Offline's rate is converted to the time per sample.

    An INVALID run's numbers get different names, so that they never continue the series of VALID runs.
    """
    result = run.result
    workload = f"{result['scenario']} {result['backend']} {result['model']}"
    is_valid = result["verdict"] == "VALID"
    extra = answer_of(result).headline
    if not is_valid:
        extra = f"{result['verdict']} ({run.codes('reasons')}): {extra}"
        workload = f"{result['verdict']} {workload}"
    found = numbers(result)
    if scenario_named(result["scenario"]).all_at_once and "throughput" in found:
        each_ns = NS_PER_S / found["throughput"].value
        found = {"time per sample": Number(each_ns, "ns"), **found}
    for name, number in found.items():
        # The tool treats smaller numbers as better, so scores and rates are skipped.
        if not number.higher_is_better:
            yield {
                "name": f"{workload}: {name}",
                "unit": number.unit,
                "value": number.value,
                **_range(number),
                "extra": extra,
            }


def _range(number: Number) -> dict[str, str]:
    """Returns the distance to the farther end of the interval, in the form that the action reads: `± NUMBER`."""
    if number.low is None or number.high is None or math.isinf(number.high):
        return {}
    return {"range": f"± {max(number.value - number.low, number.high - number.value):.6g}"}
