"""Shows a run with several models: a table of the models, and the hit rate by capacity as a table and a plot."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.units import show_percent
from harness.results.pages.page import Figure
from harness.results.pages.plots import line, rounded
from harness.results.pages.tables import Table, columns

_MB = 1e-6

_HEADS = columns(
    "model | size [bytes] | share [share] | requests [count] | hits [count] | loads [count] | evictions [count] | "
    "p50 [ns] | p99 [ns] | load [ns] | keep"
)


def models_table(result: Mapping[str, Any]) -> Table | None:
    """Returns the table; None for a result with one model."""
    found = result.get("models")
    if not found:
        return None
    rows = [
        (
            each["name"],
            each["bytes"],
            each["share"],
            each["requests"],
            each["hits"],
            sum(each["loads"].values()) + sum(each["alone"].values()),
            each["evictions"],
            each["latency_ns"]["p50"] if each["latency_ns"] else None,
            each["latency_ns"]["p99"] if each["latency_ns"] else None,
            each["load_ns"],
            "keep" if each["keep"] else "",
        )
        for each in found["models"]
    ]
    top = show_percent(found["top_share"])
    return Table(
        "models",
        "Models",
        "Latencies count from the schedule, so they include the wait for a load.",
        _HEADS,
        rows,
        (
            f"Popularity {found['law']}: the top 20 % of the models get {top} of the queries.",
            "keep: whether share x load time / bytes justifies keeping the model in the cache, judged before the run.",
        ),
    )


def curve_table(result: Mapping[str, Any]) -> Table | None:
    """Returns a table with the hit rate at each capacity; None for a result with one model."""
    found = result.get("models")
    if not found:
        return None
    policies = [one["policy"] for one in found["curve"]]
    by_capacity: dict[int, dict[str, float]] = {}
    for one in found["curve"]:
        for point in one["points"]:
            by_capacity.setdefault(point["capacity_bytes"], {})[one["policy"]] = point["hit_rate"]
    heads = " | ".join(["capacity [bytes]", *(f"{policy} [share]" for policy in policies)])
    rows = [
        (capacity, *(rates.get(policy) for policy in policies))
        for capacity, rates in sorted(by_capacity.items())
    ]
    about = f"Simulated on the first {found['curve'][0]['requests']:,} requests of the run."
    return Table("hit-rates", "Hit rate by capacity", about, columns(heads), rows)


def curve_figure(result: Mapping[str, Any]) -> Iterator[Figure]:
    """Plots the hit rate against the capacity, with one line per policy and a mark for the run."""
    found = result.get("models")
    if not found:
        return
    data = [
        line(
            one["policy"],
            [rounded(point["capacity_bytes"], _MB) for point in one["points"]],
            [rounded(point["hit_rate"], 100) for point in one["points"]],
        )
        for one in found["curve"]
    ]
    own = rounded(found["capacity_bytes"], _MB)
    data.append(
        line(
            "this run",
            [own],
            [rounded(found["hit_rate"], 100)],
            mode="markers",
            marker={"symbol": "x", "size": 10},
        )
    )
    yield Figure(
        "Hit rate by capacity",
        f"Simulated on the first {found['curve'][0]['requests']:,} requests. The cross is the run's measurement.",
        data,
        {
            "xaxis": {"title": "capacity, MB", "rangemode": "tozero"},
            "yaxis": {"title": "hits, %", "range": [0, 101]},
        },
    )
