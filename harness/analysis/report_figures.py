"""The report's plots, as plain data for plotly.js: no plot has more than about a thousand points."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from harness.logs import DetailLog
from harness.stages import STAGE_EDGES, STAGES, query_latency_ns
from harness.types import Array
from harness.units import NS_PER_MS, NS_PER_S
from harness.verdict import Evidence

_POINTS = 600
_TIME_BINS = 120
_QUARTER_S = 15 * 60
_DEEPEST = 1e-5
"""The share of the slowest samples that the tail plot ends with."""


class Figure(NamedTuple):
    """data, layout: as plotly.js takes them. about: one sentence below the title."""

    title: str
    about: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]


def figures(run: Evidence) -> Iterator[Figure]:
    """Of a performance run; none where it completed no query."""
    if run.done is None or not len(run.done):
        return
    samples = run.plan.samples_per_query
    latency_ns = query_latency_ns(run.done, samples)
    if not len(latency_ns):
        return
    ordered_ms = np.sort(latency_ns) / NS_PER_MS
    bound_ns = run.plan.latency_bound_ns
    bound_ms = bound_ns / NS_PER_MS if bound_ns else None
    yield _cdf(ordered_ms, bound_ms)
    yield _tail(ordered_ms, bound_ms)
    yield _over_time(run, latency_ns, samples)
    yield _stages(run)
    yield _batches(run)


def _cdf(ordered_ms: Array, bound_ms: float | None) -> Figure:
    n = len(ordered_ms)
    ranks = np.unique(np.linspace(0, n - 1, _POINTS).astype(int))
    line = {"x": _list(ordered_ms[ranks]), "y": _list((ranks + 1) / n * 100), "mode": "lines"}
    return Figure(
        "Latency distribution",
        "Which share of the queries was answered within which time.",
        [{**line, "name": "queries", "line": {"shape": "hv"}}],
        {
            "xaxis": {"title": "latency, ms", "type": "log"},
            "yaxis": {"title": "queries, %", "range": [0, 101]},
            "shapes": _bound(bound_ms, "x"),
        },
    )


def _tail(ordered_ms: Array, bound_ms: float | None) -> Figure:
    """Against 1 - percentile on a logarithmic scale, the slowest to the right."""
    n = len(ordered_ms)
    slower = np.geomspace(1, max(1 / n, _DEEPEST), _POINTS)
    ranks = np.minimum((n * (1 - slower)).astype(int), n - 1)
    ticks = [s for s in (1, 0.5, 0.1, 0.01, 0.001, 0.0001, 0.00001) if s >= slower[-1] * 0.99]
    names = [f"p{(1 - s) * 100:.10g}" for s in ticks]
    line = {"x": _list(slower), "y": _list(ordered_ms[ranks]), "mode": "lines"}
    return Figure(
        "Tail",
        "The latency at each percentile; every mark to the right is ten times rarer.",
        [{**line, "name": "latency"}],
        {
            "xaxis": {
                "title": "percentile",
                "type": "log",
                "autorange": "reversed",
                "tickvals": ticks,
                "ticktext": names,
            },
            "yaxis": {"title": "latency, ms", "type": "log"},
            "shapes": _bound(bound_ms, "y"),
        },
    )


def _over_time(run: Evidence, latency_ns: Array, samples: int) -> Figure:
    """Percentiles of the queries completed in each stretch of time, and how many these were."""
    assert run.done is not None
    completed_ns = run.done.columns["completed_ns"][: len(latency_ns) * samples]
    completed_ns = completed_ns.reshape(-1, samples).max(axis=1)
    begun_ns = int(run.done.columns["scheduled_ns"].min())
    at_s = (completed_ns - begun_ns) / NS_PER_S
    edges = np.linspace(0, max(float(at_s.max()), 1e-6), _TIME_BINS + 1)
    which = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, _TIME_BINS - 1)
    counts = np.bincount(which, minlength=_TIME_BINS)
    rows = [latency_ns[which == i] / NS_PER_MS for i in range(_TIME_BINS)]
    middle = _list((edges[:-1] + edges[1:]) / 2)
    data: list[Mapping[str, Any]] = [
        {"x": middle, "y": _each(rows, q), "name": name, "mode": "lines", "connectgaps": False}
        for name, q in (("p50", 0.5), ("p99", 0.99), ("slowest", 1.0))
    ]
    rate = _list(counts / (edges[1] - edges[0]))
    data.append({"x": middle, "y": rate, "name": "queries/s", "yaxis": "y2", "mode": "lines"})
    window = _window_s(run.log, begun_ns)
    about = "By the time of completion, counted from the first query."
    grey = f"Grey: the time between {run.log.source}'s power_begin and power_end."
    return Figure(
        "Latency and rate over time",
        f"{about} {grey}" if window else about,
        data,
        {
            "xaxis": {"title": "time, s", "anchor": "y2"},
            "yaxis": {"title": "latency, ms", "type": "log", "domain": [0.38, 1]},
            "yaxis2": {"title": "queries/s", "rangemode": "tozero", "domain": [0, 0.3]},
            "shapes": _band(window),
        },
    )


def _each(rows: Sequence[Array], fraction: float) -> list[float | None]:
    """None, a gap in the line, where nothing was completed."""
    return [round(float(np.quantile(r, fraction)), 6) if len(r) else None for r in rows]


def _window_s(log: DetailLog, begun_ns: int) -> tuple[float, float] | None:
    """LoadGen's power_begin and power_end, in seconds since the first query.

    They are in the local time of the run's machine, which the log does not name: read as UTC, and
    whole quarters of an hour, in which zones differ, are taken off.
    """
    try:
        begin, end = (
            datetime.strptime(str(log.get(key)), "%m-%d-%Y %H:%M:%S.%f").replace(tzinfo=UTC)
            for key in ("power_begin", "power_end")
        )
    except ValueError:
        return None
    apart_s = begin.timestamp() - begun_ns / NS_PER_S
    first_s = (apart_s + _QUARTER_S / 2) % _QUARTER_S - _QUARTER_S / 2
    return first_s, first_s + (end - begin).total_seconds()


def _stages(run: Evidence) -> Figure:
    """Mean time in each stage of the samples around each percentile of latency."""
    assert run.done is not None
    latency_ns = run.done.latency_ns
    n = len(latency_ns)
    marks = np.concatenate([np.arange(0, 95, 5), [95, 97, 98, 99, 99.5, 99.9, 100]])
    bounds = np.unique((marks / 100 * n).astype(int))
    order = np.argsort(latency_ns, kind="stable")
    names = [f"p{last / n * 100:.4g}" for _, last in _pairs(bounds)]
    data = []
    for stage in STAGES:
        begin, end = STAGE_EDGES[stage]
        spent = (run.done.columns[end] - run.done.columns[begin])[order] / NS_PER_MS
        means = [float(spent[first:last].mean()) for first, last in _pairs(bounds)]
        data.append({"type": "bar", "x": names, "y": _list(np.array(means)), "name": stage})
    return Figure(
        "Where the time goes",
        "Mean time in each stage, of the samples between this percentile of latency and the last.",
        data,
        {
            "barmode": "stack",
            "xaxis": {"type": "category"},
            "yaxis": {"title": "time, ms"},
        },
    )


def _pairs(bounds: Array) -> list[tuple[int, int]]:
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def _batches(run: Evidence) -> Figure:
    assert run.done is not None
    _, first = np.unique(run.done.columns["batch"], return_index=True)
    sizes, counts = np.unique(run.done.columns["batch_size"][first], return_counts=True)
    return Figure(
        "Batch sizes",
        "How many samples the model was given at once, and how often.",
        [{"type": "bar", "x": sizes.tolist(), "y": counts.tolist(), "name": "batches"}],
        {"xaxis": {"title": "samples in the batch"}, "yaxis": {"title": "batches"}},
    )


def _bound(bound_ms: float | None, axis: str) -> list[Mapping[str, Any]]:
    """The SLO's latency, as a dashed line."""
    if bound_ms is None:
        return []
    across = {"x0": bound_ms, "x1": bound_ms, "y0": 0, "y1": 1, "yref": "paper"}
    if axis == "y":
        across = {"y0": bound_ms, "y1": bound_ms, "x0": 0, "x1": 1, "xref": "paper"}
    return [{"type": "line", **across, "line": {"dash": "dash", "color": "#c0392b"}}]


def _band(window_s: tuple[float, float] | None) -> list[Mapping[str, Any]]:
    if window_s is None:
        return []
    edges = {"x0": window_s[0], "x1": window_s[1], "y0": 0, "y1": 1, "yref": "paper"}
    fill = {"fillcolor": "#888888", "opacity": 0.12, "line": {"width": 0}, "layer": "below"}
    return [{"type": "rect", **edges, **fill}]


def _list(values: Array) -> list[float]:
    """Six digits are more than a screen shows, and a third of the file."""
    return [float(f"{value:.6g}") for value in values.tolist()]
