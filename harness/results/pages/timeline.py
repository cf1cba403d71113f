"""Draws latency, rate, power and machine readings in stacked panels over a common time axis."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from harness.core.config.parse import Slo
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.scenario import scenario_named
from harness.machine.family import Row
from harness.machine.host_log import HostLog
from harness.machine.power.energy import GAP_NS, NoReading, PowerLog, counted, window_ns
from harness.models.cache.cache import ORIGINS
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import query_latency_ns
from harness.results.pages.page import POINTS, Figure, digits, thinned
from harness.results.pages.plots import bound_line, token_limit
from harness.results.records import Samples
from harness.results.tokens import section
from harness.types import Array, PowerSource

FAR = 100
"""A bound is drawn only up to this multiple of the slowest query. A bound farther away would squeeze the queries
together.
"""

_BINS = 120
"""Maximum number of intervals in a panel."""

_LEAST = 100
"""Minimum number of queries per interval of a percentile, on average. A p99 of fewer queries is their maximum."""

_FEW = 2_000
"""Up to this number of queries, each is a dot."""

_LEAST_RATE = 25
"""Minimum number of queries per interval of a rate. With Poisson arrivals, a rate of 25 queries varies by 20 %."""

_POWER_S = 0.5
"""Shortest period over which power is averaged. Without this minimum, a counter that is refreshed ten times per second
but read twenty times would alternate between zero and twice the power.
"""
_BUSY = ("user", "nice", "system", "irq", "softirq")
_PANEL_REM, _GAP_REM = 8.0, 2.4


class _Panel(NamedTuple):
    """One panel of a figure. lines: traces without their axis. height: as a multiple of the usual height. bounds: shapes
    without their axis.
    """

    lines: Sequence[Mapping[str, Any]]
    axis: Mapping[str, Any]
    height: float = 1
    bounds: Sequence[Mapping[str, Any]] = ()


def over_time(
    run: Evidence, latency_ns: Array, beside: Samples, slos: Sequence[Slo] = ()
) -> Figure:
    """Draws a run over time. run: a run that completed queries. latency_ns: (queries,). slos: of the run, for the bounds
    of token times.
    """
    assert run.done is not None
    begun_ns = int(run.done.columns["scheduled_ns"].min())
    at_s = _completed_s(run, len(latency_ns))
    window = window_ns(run.log.values)
    edges_s = [(edge - begun_ns) / NS_PER_S for edge in window] if window else []
    shown_s = [0.0, float(at_s.max()), *edges_s]
    panels = [*_queries(run, at_s, latency_ns), *_tokens(run, slos), *_cache(run, at_s)]
    about = "Time counts from the first query. Queries are shown at the time of their completion."
    if window:
        about += " Grey: the measured window."
    found = _beside(beside, begun_ns, (min(shown_s), max(shown_s)))
    if any(found.values()):
        panels += itertools.chain(*found.values())
        about += " Zoom out (double click) to see the machine before and after the run."
    if missing := [name for name, some in found.items() if not some]:
        about += f" Not drawn, because the run has too few readings: {', '.join(missing)}."
    return _stacked("Over time", about, panels, shown_s, edges_s)


def _beside(
    beside: Samples, begun_ns: int, shown_s: tuple[float, float]
) -> Mapping[str, Sequence[_Panel]]:
    """Maps each kind of readings to its panels. Omits panels that show no curve in the initial view.

    shown_s: start and end of the initial view.
    """
    made: dict[str, Iterator[_Panel]] = {}
    if beside.server is not None:
        made["servers"] = _server(beside.server, begun_ns)
    if beside.power is not None:
        made["power"] = _power(beside.power, begun_ns)
    if beside.host is not None:
        made["machine"] = _host(beside.host, begun_ns)
    return {name: [one for one in some if _is_within(one, shown_s)] for name, some in made.items()}


def _is_within(panel: _Panel, shown_s: tuple[float, float]) -> bool:
    """Returns whether a line in the panel is visible between two times."""
    first_s, last_s = shown_s
    lines = ([x for x in line["x"] if x is not None] for line in panel.lines)
    return any(min(x) <= last_s and first_s <= max(x) for x in lines)


def p99_over_time(runs: Mapping[str, Evidence]) -> Figure:
    """Draws the p99 and the rate of several runs, each starting at its first query. The intervals of all runs have about
    the same width, because the p99 of a longer interval is higher. If a run has too few queries for a p99 over time,
    draws each query of all runs. runs: runs that completed queries.
    """
    found = {}
    for name, run in runs.items():
        assert run.done is not None
        latency_ns = query_latency_ns(run.done, run.plan.samples_per_query)
        found[name] = _completed_s(run, len(latency_ns)), latency_ns
    last_s = max(float(at_s.max()) for at_s, _ in found.values())
    p99_s = _width_s(found.values(), _LEAST)
    rate_s = _width_s(found.values(), _LEAST_RATE)
    has_line = p99_s <= last_s / 2
    latencies, rates = [], []
    for name, (at_s, latency_ns) in found.items():
        if has_line:
            x, rows, _ = _binned(at_s, latency_ns, p99_s)
            latencies.append(_curve(x, _each(rows, 0.99), name))
        else:
            latencies.append(_dots(at_s, latency_ns, name))
        x, _, per_s = _binned(at_s, latency_ns, rate_s)
        rates.append(_curve(x, digits(per_s), name))
    title = "p99 latency, ms" if has_line else "latency of each query, ms"
    panels = [
        _Panel(latencies, {"title": title, "type": "log"}, height=2),
        _Panel(rates, {"title": "queries/s", "rangemode": "tozero"}),
    ]
    about = "Time counts from each run's first query. Queries are shown at the time of their completion."
    return _stacked("Over time", about, panels, [0.0, last_s], [])


def _width_s(found: Collection[tuple[Array, Array]], least: int) -> float:
    """Returns the width of an interval in which every run completes at least `least` queries on average."""
    runs = [(max(float(at_s.max()), 1e-6), len(at_s)) for at_s, _ in found]
    return max(*(last_s * least / count for last_s, count in runs), max(runs)[0] / _BINS)


def _curve(x: list[float], y: Sequence[float | None], name: str) -> dict[str, Any]:
    """Returns a line with a gap for each missing value. A short line has markers, so that single values are visible."""
    mode = "lines" if len(x) > 20 else "lines+markers"
    return {"x": x, "y": y, "name": name, "connectgaps": False, "mode": mode}


def _dots(at_s: Array, times_ns: Array, name: str) -> dict[str, Any]:
    """Returns a dot for each time, or for the extremes of each interval if the times are many."""
    x, y = thinned(at_s, times_ns / NS_PER_MS)
    look = {"mode": "markers", "marker": {"size": 4, "opacity": 0.6}}
    return {"x": digits(x), "y": digits(y), "name": name, **look}


def _completed_s(run: Evidence, queries: int) -> Array:
    """Returns the (queries,) times at which complete queries were answered, in s after the first query's due time."""
    assert run.done is not None
    samples = run.plan.samples_per_query
    completed_ns = run.done.columns["completed_ns"][: queries * samples]
    begun_ns = int(run.done.columns["scheduled_ns"].min())
    at_s: Array = (completed_ns.reshape(-1, samples).max(axis=1) - begun_ns) / NS_PER_S
    return at_s


def _binned(
    at_s: Array, latency_ns: Array, width_s: float
) -> tuple[list[float], Sequence[Array], Array]:
    """Divides the time into equal intervals, and returns each interval's middle in s, the sorted latencies of the
    queries completed in it, and queries/s. width_s: least width of an interval.
    """
    last_s = max(float(at_s.max()), 1e-6)
    bins = max(1, int(last_s / width_s + 1e-9))
    edges = np.linspace(0, last_s, bins + 1)
    which = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, bins - 1)
    counts = np.bincount(which, minlength=bins)
    in_order = latency_ns[np.lexsort((latency_ns, which))]
    rows = np.split(in_order, np.cumsum(counts)[:-1])
    return digits((edges[:-1] + edges[1:]) / 2), rows, counts / (edges[1] - edges[0])


def _times(
    at_s: Array, times_ns: Array, percentiles: Mapping[str, float], of: str
) -> Iterator[Mapping[str, Any]]:
    """Yields the slowest times as dots, below a line for each percentile. Yields every time if there are few, and no
    line if there are too few for percentiles over time. percentiles: share by the line's name; of: what a time
    belongs to, for the names of the dots.
    """
    width_s = _width_s([(at_s, times_ns)], _LEAST)
    x, rows, _ = _binned(at_s, times_ns, width_s)
    if len(at_s) <= _FEW:
        yield _dots(at_s, times_ns, f"each {of}")
    else:  # in the intervals of the percentiles, so that no p99 exceeds the slowest time
        filled = [i for i, row in enumerate(rows) if len(row)]
        slowest_ns = np.array([rows[i][-1] for i in filled])
        yield _dots(np.array(x)[filled], slowest_ns, f"slowest {of}")
    if width_s <= float(at_s.max()) / 2:
        for name, share in percentiles.items():
            yield {**_curve(x, _each(rows, share), name), "line": {"width": 2}}


def _queries(run: Evidence, at_s: Array, latency_ns: Array) -> Iterator[_Panel]:
    """Yields panels with the percentiles and the rate of the queries completed in each interval. Offline gets only the
    rate, because the latency of samples that are issued at once is the time of their completion.
    """
    lines = list(_times(at_s, latency_ns, {"p99": 0.99, "p50": 0.5}, "query"))
    x, _, per_s = _binned(at_s, latency_ns, _width_s([(at_s, latency_ns)], _LEAST_RATE))
    bound_ns = run.plan.latency_bound_ns
    is_near = bound_ns and bound_ns <= FAR * float(latency_ns.max())
    bound_ms = bound_ns / NS_PER_MS if bound_ns and is_near else None
    bounds = bound_line(bound_ms, "y")
    latency = _Panel(lines, {"title": "latency, ms", "type": "log"}, height=2, bounds=bounds)
    rate: list[Mapping[str, Any]] = [_curve(x, digits(per_s), "answered")]
    if run.plan.target_qps is not None:
        target = {"x": [0, float(at_s.max())], "y": [run.plan.target_qps] * 2, "name": "requested"}
        rate.append({**target, "line": {"dash": "dash"}})
    if scenario_named(run.plan.scenario).all_at_once:
        yield _Panel(rate, {"title": "samples/s", "rangemode": "tozero"}, height=2)
    else:
        yield latency
        yield _Panel(rate, {"title": "queries/s", "rangemode": "tozero"})


def _tokens(run: Evidence, slos: Sequence[Slo]) -> Iterator[_Panel]:
    """Yields a panel with the p99 of the token times of the answers completed in each interval; nothing unless answers
    were streamed.
    """
    assert run.done is not None
    columns = run.done.columns
    lines, bounds = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    at_s = (columns["completed_ns"] - columns["scheduled_ns"].min()) / NS_PER_S
    for of, (has_time, times_ns) in section.by_answer(columns).items():
        if not len(times_ns):
            continue
        lines += _times(at_s[has_time], times_ns, {f"{of.upper()} p99": 0.99}, of.upper())
        most_ns = FAR * float(times_ns.max())
        ours = (slo for slo in slos if slo.of == of and slo.bound_ns <= most_ns)
        bounds += (token_limit(slo, "y", lines[-1]["name"]) for slo in ours)
    if lines:
        yield _Panel(lines, {"title": "token times, ms", "type": "log"}, bounds=bounds)


def _cache(run: Evidence, at_s: Array) -> Iterator[_Panel]:
    """Yields a panel with hits, loads and evictions per second for a run with several models."""
    assert run.done is not None
    columns = run.done.columns
    if "origin" not in columns or len(at_s) != len(columns["origin"]):
        return
    edges = np.linspace(0, max(float(at_s.max()), 1e-6), _BINS + 1)
    which = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, _BINS - 1)
    width_s = float(edges[1] - edges[0])
    origin = columns["origin"]
    counted_by = {
        "hits": origin == ORIGINS.index("hit"),
        "waits for another's load": origin == ORIGINS.index("joined"),
        "loads from a file": np.isin(origin, _of_tier("local")),
        "loads from the source": np.isin(origin, _of_tier("source")),
        "failed loads": origin == ORIGINS.index("failed"),
        "evictions": columns["evicted"],
    }
    lines = [
        {
            "x": digits((edges[:-1] + edges[1:]) / 2),
            "y": digits(np.bincount(which, weights=each, minlength=_BINS) / width_s),
            "name": name,
        }
        for name, each in counted_by.items()
        if each.any()
    ]
    yield _Panel(lines, {"title": "models/s", "rangemode": "tozero"})


def _of_tier(tier: str) -> list[int]:
    return [ORIGINS.index(tier), ORIGINS.index(f"alone-{tier}")]


def _each(rows: Sequence[Array], share: float) -> list[float | None]:
    """Returns one percentile of each row, in ms. rows: sorted latencies. An empty row gives None, which leaves a gap in
    the line. share: in (0, 1).
    """
    values_ns = [percentile_ns(row, share) if len(row) else None for row in rows]
    return [None if ns is None else round(float(ns) / NS_PER_MS, 6) for ns in values_ns]


def _power(log: PowerLog, begun_ns: int) -> Iterator[_Panel]:
    lines = []
    for source in log.sources:
        readings = sorted(log.series.get(source.name, ()))
        series = _watts(source, readings) if len(readings) > 1 else None
        if series is None:
            continue
        at_ns, watts = series
        gap_s = GAP_NS / NS_PER_S if source.unit == "W" else None
        name = source.name if source.provenance == "measured" else f"{source.name} (estimated)"
        lines.append({**_line((at_ns - begun_ns) / NS_PER_S, watts, gap_s), "name": name})
    if lines:
        yield _Panel(lines, {"title": "power, W", "rangemode": "tozero"})


def _watts(
    source: PowerSource, readings: Sequence[tuple[int, float]]
) -> tuple[Array, Array] | None:
    """Returns the times (wall clock in ns) and the power in watts; None if the counter went backwards without
    explanation.
    """
    at = np.array([t for t, _ in readings], np.float64)
    value = np.array([v for _, v in readings])
    if source.unit == "W":
        return at, value
    joules = counted(source, value)
    if isinstance(joules, NoReading) or at[-1] <= at[0]:
        return None
    step = max(_POWER_S * NS_PER_S, (at[-1] - at[0]) / POINTS)
    grid = np.linspace(at[0], at[-1], max(1, int((at[-1] - at[0]) / step)) + 1)
    watts = np.diff(np.interp(grid, at, joules)) / (np.diff(grid) / NS_PER_S)
    return (grid[:-1] + grid[1:]) / 2, watts


def _host(log: HostLog, begun_ns: int) -> Iterator[_Panel]:
    """Yields panels that show the busy cores and, if the machine reports them, frequency and temperature."""
    rows = log.rows
    at_s = (np.array([row["wall_ns"] for row in rows], np.float64) - begun_ns) / NS_PER_S
    counters: Mapping[str, Callable[[Row], float]] = {
        "all processes": lambda row: sum(row[f"cpu_{mode}_s"] for mode in _BUSY),
        "measured process": lambda row: row["measured_cpu_s"],
        "stolen": lambda row: row["cpu_steal_s"],
    }
    lines = {name: _growth(rows, at_s, counter) for name, counter in counters.items()}
    whole, own = lines["all processes"], lines["measured process"]
    if whole is not None and own is not None and whole["x"] == own["x"]:
        # The machine's counters have a coarser clock than the process, which cannot use more than the whole.
        whole["y"] = [
            max(pair) if None not in pair else pair[0]
            for pair in zip(whole["y"], own["y"], strict=True)
        ]
    cores = [{**line, "name": name} for name, line in lines.items() if line is not None]
    if cores:
        yield _Panel(cores, {"title": "cores busy", "rangemode": "tozero"})
    for prefix, title, names, factor in (
        ("mhz_", "GHz", ("fastest core", "slowest core"), 1e-3),
        ("celsius_", "°C", ("hottest sensor",), 1.0),
    ):
        if ranges := _range(rows, at_s, prefix, names, factor):
            yield _Panel(ranges, {"title": title})


def _server(log: HostLog, begun_ns: int) -> Iterator[_Panel]:
    """Yields panels that show the servers' metrics: requests, shares, and work per second."""
    rows = log.rows
    at_s = (np.array([row["wall_ns"] for row in rows], np.float64) - begun_ns) / NS_PER_S
    for title, names in (
        ("requests in server", {"running": "running_requests", "waiting": "waiting_requests"}),
        ("server, share", {"KV cache": "kv_cache_share", "GPU": "gpu_share"}),
    ):
        lines = [
            {**line[0], "name": name}
            for name, column in names.items()
            if (line := _range(rows, at_s, column, (name,), 1.0))
        ]
        if lines:
            yield _Panel(lines, {"title": title, "rangemode": "tozero"})
    for title, names in (
        ("server, tokens/s", {"prompts": "prompt_tokens", "answers": "generated_tokens"}),
        ("server, /s", {"samples": "inferences", "batches": "executions"}),
    ):
        grown = {n: _growth(rows, at_s, itemgetter(column)) for n, column in names.items()}
        if lines := [{**line, "name": name} for name, line in grown.items() if line is not None]:
            yield _Panel(lines, {"title": title, "rangemode": "tozero"})


def _growth(
    rows: Sequence[Row], at_s: Array, counter: Callable[[Row], float]
) -> dict[str, Any] | None:
    """Returns a line that shows by how much a counter grew per second; None if the rows lack the counter."""
    points = []
    for at, row in zip(at_s.tolist(), rows, strict=True):
        try:
            points.append((at, counter(row)))
        # The machine does not report this counter, or the process has not started yet.
        except KeyError:
            continue
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    later = np.diff(x) > 0
    if not later.any():
        return None
    growth = np.diff(y)[later] / np.diff(x)[later]
    return _line(((x[:-1] + x[1:]) / 2)[later], growth)


def _range(
    rows: Sequence[Row], at_s: Array, prefix: str, names: Sequence[str], factor: float
) -> list[Mapping[str, Any]]:
    """Returns a line with the highest value among the columns with `prefix` and, if there is a second name, a line with
    the lowest value.
    """
    values = [[v for name, v in row.items() if name.startswith(prefix)] for row in rows]
    known = [i for i, of_row in enumerate(values) if of_row]
    if not known:
        return []
    return [
        {**_line(at_s[known], np.array([pick(values[i]) for i in known]) * factor), "name": name}
        for name, pick in zip(names, (max, min), strict=False)
    ]


def _line(x: Array, y: Array, gap_s: float | None = None) -> dict[str, Any]:
    """Returns a line with fewer points that keeps the extremes. gap_s: distance between points at which the line
    breaks.
    """
    breaks: Array = np.flatnonzero(np.diff(x) > (np.inf if gap_s is None else gap_s)) + 1
    parts = [thinned(*p) for p in zip(np.split(x, breaks), np.split(y, breaks), strict=True)]
    xs: list[float | None] = []
    ys: list[float | None] = []
    for i, (part_x, part_y) in enumerate(parts):
        xs += [None, *digits(part_x)] if i else digits(part_x)
        ys += [None, *digits(part_y)] if i else digits(part_y)
    return {"x": xs, "y": ys, "mode": "lines" if len(xs) > 20 else "lines+markers"}


def _stacked(
    title: str,
    about: str,
    panels: Sequence[_Panel],
    shown_s: Sequence[float],
    window_s: Sequence[float],
) -> Figure:
    """Stacks panels above one time axis. shown_s: times that the initial view must include."""
    heights = [panel.height * _PANEL_REM for panel in panels]
    total = sum(heights) + _GAP_REM * (len(panels) - 1)
    data: list[Mapping[str, Any]] = []
    margin = max(max(shown_s) - min(shown_s), 1e-3) * 0.02
    layout: dict[str, Any] = {
        "xaxis": {
            "title": "time, s",
            "anchor": f"y{len(panels)}" if len(panels) > 1 else "y",
            "range": [min(shown_s) - margin, max(shown_s) + margin],
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "dot",
            "unifiedhovertitle": {"text": "%{x:.2f} s"},
        },
        # One label shows the values of all panels at the pointer's time.
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverdistance": 50,
    }
    if window_s:  # drawn as a grey band
        edges = {"x0": window_s[0], "x1": window_s[1], "y0": 0, "y1": 1, "yref": "paper"}
        fill = {"fillcolor": "#888888", "opacity": 0.12, "line": {"width": 0}, "layer": "below"}
        layout["shapes"] = [{"type": "rect", **edges, **fill}]
    else:
        layout["shapes"] = []
    top = total
    for i, (panel, height) in enumerate(zip(panels, heights, strict=True), 1):
        number = "" if i == 1 else str(i)
        bottom = max(0.0, top - height)
        layout[f"yaxis{number}"] = {**panel.axis, "domain": [bottom / total, top / total]}
        layout["shapes"] += [{**one, "yref": f"y{number}"} for one in panel.bounds]
        legend = f"legend{number}"
        layout[legend] = {"y": top / total, "x": 0, "orientation": "h", "yanchor": "bottom"}
        data += [
            {"mode": "lines", **line, "yaxis": f"y{number}", "legend": legend, "showlegend": True}
            for line in panel.lines
        ]
        top = bottom - _GAP_REM
    return Figure(title, about, data, layout, height_rem=total + 7)
