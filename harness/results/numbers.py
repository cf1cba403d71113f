"""Lists a run's numbers with their names, units, kinds of noise, and places in result.json.

`compare`, repeats, exports and histories use this list, so that a number has the same name everywhere.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from harness.core.config.parse import leading, parse_slos
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import PERCENTILES

SPEEDS: Mapping[str, str] = {
    "throughput": "samples/s",
    **dict.fromkeys((*PERCENTILES, "mean"), "ns"),
}
"""Maps the rate and latencies of the whole run from name to unit."""

TOKEN_TIMES = ("ttft", "answer_ttft", "tpot", "itl")

OPEN = (0.0, math.inf)
"""Interval of a number if the run has too few independent parts for a real interval."""

_Named = Iterator[tuple[str, "Number"]]


class Number(NamedTuple):
    value: float
    unit: str
    """`ns`, `samples/s`, `J`, or the score's unit."""
    kind: str = "body"
    """Kind of noise: `rate`, `body`, `tail` or `exact`."""
    low: float | None = None
    """Lower end of the interval within the run; None if only the number is known."""
    high: float | None = None
    """Upper end of the interval within the run; None if only the number is known."""
    higher_is_better: bool = False


def numbers(result: Mapping[str, Any]) -> dict[str, Number]:
    """Returns the numbers that the run measured, by name. result: the content of result.json.

    Offline has no latencies, because such latencies would only reflect how many samples were issued at once.
    """
    return dict(_numbers(result))


def speeds(result: Mapping[str, Any]) -> dict[str, Number]:
    """Returns the rate and the latencies of the whole run, in the form of `numbers`."""
    return dict(_speeds(result))


def _speeds(result: Mapping[str, Any]) -> _Named:
    rate = (result.get("throughput_per_s") or {}).get("completed")
    if rate:
        yield "throughput", Number(rate, "samples/s", "rate", higher_is_better=True)
    if not scenario_named(result["scenario"]).all_at_once:
        yield from _latencies(result)


def _numbers(result: Mapping[str, Any]) -> _Named:
    yield from _speeds(result)
    process = result.get("measured_process")
    if process:
        yield "cpu", Number(process["cpu_s_per_query"] * 1e9, "ns")
    headline = result.get("headline")
    # Only the early-stopping estimate is a headline in ns. The numbers yielded above include all other headlines.
    if headline and headline["unit"] == "ns":
        yield "headline", Number(headline["value"], "ns", "tail")
    yield from _of_tokens(result)
    score = result.get("accuracy") or {}
    if score.get("value") is not None:
        higher, unit = not score.get("lower_is_better"), score.get("unit", "")
        yield "accuracy", Number(score["value"], unit, "exact", higher_is_better=higher)
    for reading in (result.get("power") or {}).get("readings", ()):
        for name in ("joules_per_query", "joules_per_sample", "joules_per_output_token"):
            if name in reading:
                # Sources cover different parts of the machine, so the name includes the source.
                yield f"{name}.{reading['source']}", Number(reading[name], "J")


def _latencies(result: Mapping[str, Any]) -> _Named:
    """Yields LoadGen's query latencies. The percentiles' intervals are computed from blocks of the journal."""
    latency, intervals = (result.get(name) or {} for name in ("latency_ns", "latency_intervals_ns"))
    for name in (*PERCENTILES, "mean"):
        if latency.get(name) is not None:
            low, high = (intervals.get(name) or {}).get("block_interval") or (None, None)
            ends = OPEN if low is None or high is None else (low, high)
            yield name, Number(latency[name], "ns", kind_of(name), *ends)


def kind_of(percentile: str) -> str:
    """Returns a percentile's kind of noise."""
    return "tail" if percentile in ("p95", "p97", "p99", "p99.9") else "body"


def _of_tokens(result: Mapping[str, Any]) -> _Named:
    """Yields the goodput under the run's SLOs, the token rate and the token times."""
    goodput = (result.get("goodput") or {}).get("per_s")
    slos = parse_slos(result.get("slo") or "") if goodput else ()
    if goodput and list(slos) != [leading(slos)]:
        name = f"goodput.{','.join(map(str, slos))}"
        yield name, Number(goodput, "queries/s", higher_is_better=True)
    tokens = result.get("tokens") or {}
    if tokens.get("output_per_s"):
        yield "tokens", Number(tokens["output_per_s"], "tokens/s", higher_is_better=True)
    for time in TOKEN_TIMES:
        for name, value_ns in (tokens.get(f"{time}_ns") or {}).items():
            if value_ns is not None:
                yield f"{time}_{name}", Number(value_ns, "ns", kind_of(name))


def deciding_number(result: Mapping[str, Any], known: Collection[str]) -> str:
    """Returns the name of the scenario's main number. In Server, this is the percentile in the SLO on latency or, if no
    SLO bounds the latency, the percentile in the first SLO on token times.

    known: names of the numbers that the run measured.
    """
    scenario = scenario_named(result["scenario"])
    if scenario.scheduled and result.get("slo"):
        slos = parse_slos(str(result["slo"]))
        names = [slo.name.replace(":", "_") for slo in (leading(slos), *slos) if slo is not None]
        if found := [name for name in names if name in known]:
            return found[0]
    if result["throughput_per_s"] is None:
        return "accuracy"
    return "throughput" if scenario.all_at_once else f"p{scenario.percentile * 100:.10g}"
