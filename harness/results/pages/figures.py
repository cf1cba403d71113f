"""Draws the report's plots of one run as data for plotly.js, small for a run of any length.

A million queries become some hundred points. Each is a value of the run: an order statistic or a
percentile of its interval, the extremes included.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from harness.core.units import NS_PER_MS
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import STAGE_EDGES, STAGES, query_latency_ns
from harness.results.pages.page import POINTS, Figure, digits
from harness.results.pages.timeline import over_time
from harness.types import Array

_TICKS = (1, 0.5, 0.1, *(10.0**-power for power in range(2, 10)))
"""Ticks of the tail: shares of the queries that are slower."""


def figures(
    run: Evidence, host: HostLog | None = None, power: PowerLog | None = None
) -> Iterator[Figure]:
    """Plots of a performance run; none where it completed no query."""
    if run.done is None or not len(run.done):
        return
    latency_ns = query_latency_ns(run.done, run.plan.samples_per_query)
    if not len(latency_ns):
        return
    ordered_ms = np.sort(latency_ns) / NS_PER_MS
    bound_ns = run.plan.latency_bound_ns
    bound_ms = bound_ns / NS_PER_MS if bound_ns else None
    yield _cdf(ordered_ms, bound_ms)
    yield _tail(ordered_ms, bound_ms)
    yield over_time(run, latency_ns, host, power)
    yield _stages(run)
    yield _batches(run)


def _cdf(ordered_ms: Array, bound_ms: float | None) -> Figure:
    n = len(ordered_ms)
    ranks = np.unique(np.linspace(0, n - 1, POINTS).astype(int))
    line = {"x": digits(ordered_ms[ranks]), "y": digits((ranks + 1) / n * 100), "mode": "lines"}
    return Figure(
        "Latency distribution",
        "Share of the queries that were answered within a time.",
        [{**line, "name": "queries", "line": {"shape": "hv"}}],
        {
            "xaxis": {"title": "latency, ms", "type": "log"},
            "yaxis": {"title": "queries, %", "range": [0, 101]},
            "shapes": bound_line(bound_ms, "x"),
        },
    )


def _tail(ordered_ms: Array, bound_ms: float | None) -> Figure:
    """Latency against 1 - percentile on a logarithmic scale, with the slowest queries to the right."""
    n = len(ordered_ms)
    slower = np.geomspace(1, 1 / n, POINTS)
    ranks = (n * (1 - slower)).astype(int)
    ranks[-1] = n - 1  # 1 - 1 / n may be rounded
    ticks = [share for share in _TICKS if share >= slower[-1] * 0.99]
    names = [f"p{(1 - s) * 100:.10g}" for s in ticks]
    axis = {"title": "percentile", "type": "log"}
    line = {"x": digits(slower), "y": digits(ordered_ms[ranks]), "mode": "lines"}
    return Figure(
        "Tail",
        "The latency at each percentile; every mark to the right is ten times rarer.",
        [{**line, "name": "latency"}],
        {
            "xaxis": {**axis, "autorange": "reversed", "tickvals": ticks, "ticktext": names},
            "yaxis": {"title": "latency, ms", "type": "log"},
            "shapes": bound_line(bound_ms, "y"),
        },
    )


def _stages(run: Evidence) -> Figure:
    """Mean time in each stage of the samples around each percentile of latency."""
    assert run.done is not None
    latency_ns = run.done.latency_ns
    n = len(latency_ns)
    marks = np.concatenate([np.arange(0, 95, 5), [95, 97, 98, 99, 99.5, 99.9, 100]])
    bounds = np.unique((marks / 100 * n).astype(int))
    order = np.argsort(latency_ns, kind="stable")
    ranges = list(pairwise(bounds.tolist()))
    names = [f"p{last / n * 100:.4g}" for _, last in ranges]
    data = []
    for stage in STAGES:
        begin, end = STAGE_EDGES[stage]
        spent = (run.done.columns[end] - run.done.columns[begin])[order] / NS_PER_MS
        means = [float(spent[first:last].mean()) for first, last in ranges]
        data.append({"type": "bar", "x": names, "y": digits(np.array(means)), "name": stage})
    return Figure(
        "Where the time goes",
        "Mean time in each stage, of the samples between this percentile of latency and the last.",
        data,
        {"barmode": "stack", "xaxis": {"type": "category"}, "yaxis": {"title": "time, ms"}},
    )


def _batches(run: Evidence) -> Figure:
    assert run.done is not None
    _, first = np.unique(run.done.columns["batch"], return_index=True)
    sizes, counts = np.unique(run.done.columns["batch_size"][first], return_counts=True)
    return Figure(
        "Batch sizes",
        "Number of batches by their number of samples.",
        [{"type": "bar", "x": sizes.tolist(), "y": counts.tolist(), "name": "batches"}],
        {"xaxis": {"title": "samples in the batch"}, "yaxis": {"title": "batches"}},
    )


def bound_line(bound_ms: float | None, axis: str) -> list[Mapping[str, Any]]:
    """The SLO's latency, as a dashed line."""
    if bound_ms is None:
        return []
    across = {"x0": bound_ms, "x1": bound_ms, "y0": 0, "y1": 1, "yref": "paper"}
    if axis == "y":
        across = {"y0": bound_ms, "y1": bound_ms, "x0": 0, "x1": 1, "xref": "paper"}
    return [{"type": "line", **across, "line": {"dash": "dash", "color": "#c0392b"}}]
