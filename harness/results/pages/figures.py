"""Generates the plots for one run's report as data for plotly.js. The data stays small for runs of any length: a
million queries become a few hundred points.

Each point is a measured value: an order statistic of the run or a percentile of an interval. The extremes are always
kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from harness.core.config.parse import Slo
from harness.core.units import NS_PER_MS, show_duration, show_ns
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import query_latency_ns, waits_of_all
from harness.results.pages.page import POINTS, Figure, digits
from harness.results.pages.plots import bars, bound_line, line, token_limit
from harness.results.pages.requests import timelines
from harness.results.pages.timeline import FAR, over_time
from harness.results.pages.words import words
from harness.results.records import NOTHING_BESIDE, Samples
from harness.results.tokens import section
from harness.types import Array

_TICKS = (0.5, 0.1, *(10.0**-power for power in range(2, 10)))
"""Ticks of the tail plot: each tick is the share of queries that are slower than the latency at the tick. The fastest
query has no tick, because its text would overlap p50 on a narrow screen.
"""


Runs = Mapping[str, Evidence]
"""Maps a name to a performance run that completed queries, in the order of the legend."""


def figures(
    run: Evidence, beside: Samples = NOTHING_BESIDE, slos: Sequence[Slo] = ()
) -> Iterator[Figure]:
    """Yields the plots of a performance run; nothing if the run did not complete any query. The plots that show the
    scenario's main number come first. slos: of the run, for the bounds of token times.
    """
    if not _has_queries(run):
        return
    latencies = (*distributions({"queries": run}), *_token_times(run, slos))
    course = (over_time(run, _latency_ns(run), beside, slos), *timelines(run))
    parts = (_stages(run), *_batches(run))
    if scenario_named(run.plan.scenario).all_at_once:
        yield from (*course, *parts, *latencies)
    else:
        yield from (*latencies, *course, *parts)


def distributions(runs: Runs) -> Iterator[Figure]:
    """Yields the latency plots for one or more runs. Skips runs that completed no query."""
    ordered_ms = {
        name: np.sort(_latency_ns(run)) / NS_PER_MS
        for name, run in runs.items()
        if _has_queries(run)
    }
    if not ordered_ms:
        return
    bounds = {run.plan.latency_bound_ns for run in runs.values()}
    bound_ns = bounds.pop() if len(bounds) == 1 else None
    bound_ms = bound_ns / NS_PER_MS if bound_ns else None
    far = ""
    if bound_ms and bound_ms > FAR * max(float(ordered[-1]) for ordered in ordered_ms.values()):
        far = f" The bound, {show_duration(round(bound_ms * NS_PER_MS))}, lies far outside."
        bound_ms = None
    about = f"Share of the queries that were answered within a given time, by the journal.{far}"
    yield _cdf("Latency distribution", about, ordered_ms, bound_line(bound_ms, "x"))
    yield _tail(ordered_ms, bound_ms, far)


def token_distributions(runs: Runs) -> Iterator[Figure]:
    """Yields a plot for each token time that every run has. runs: runs that completed queries."""
    for of, title in _TOKEN_TIMES.items():
        ordered_ms = {}
        for name, run in runs.items():
            found = section.by_answer(run.done.columns) if run.done else {}
            if of in found and len(found[of].times_ns):
                ordered_ms[name] = np.sort(found[of].times_ns) / NS_PER_MS
        if len(ordered_ms) == len(runs):
            yield _cdf(
                title[0].upper() + title[1:],
                "Share of the answers within a given time.",
                ordered_ms,
                [],
            )


def _latency_ns(run: Evidence) -> Array:
    """Returns the (queries,) latencies in ns."""
    assert run.done is not None
    return query_latency_ns(run.done, run.plan.samples_per_query)


def _has_queries(run: Evidence) -> bool:
    return bool(run.done) and len(_latency_ns(run)) > 0


_TOKEN_TIMES = {
    "ttft": "time to the first token (TTFT)",
    "tpot": "time per further token (TPOT)",
}
"""Name of each drawn token time, by the name in an SLO."""


def _token_times(run: Evidence, slos: Sequence[Slo]) -> Iterator[Figure]:
    """Yields the plot of token times with the bounds of their SLOs; nothing unless answers were streamed."""
    assert run.done is not None
    if (times_ns := section.times_ns(run.done.columns)) is None:
        return
    ordered_ms = {
        name: np.sort(each_ns) / NS_PER_MS
        for name, each_ns in zip(_TOKEN_TIMES.values(), times_ns, strict=True)
        if len(each_ns)
    }
    if ordered_ms:
        about = "Share of the answers within a given time."
        slowest_ms = max(float(ordered[-1]) for ordered in ordered_ms.values())
        yield _cdf(
            "Token time distribution", about, ordered_ms, [*_token_bounds(slos, FAR * slowest_ms)]
        )


def _token_bounds(slos: Sequence[Slo], most_ms: float) -> Iterator[Mapping[str, Any]]:
    """Yields the bounds of the drawn token times, except those above `most_ms`."""
    for slo in slos:
        if slo.of in _TOKEN_TIMES and slo.bound_ns <= most_ms * NS_PER_MS:
            yield token_limit(slo, "x", _TOKEN_TIMES[slo.of])


def _cdf(
    title: str, about: str, lines: Mapping[str, Array], bounds: Sequence[Mapping[str, Any]]
) -> Figure:
    """Plots cumulative distributions. lines: (n,) times in ms by name, ascending. bounds: lines of SLOs."""
    drawn = []
    for name, ordered_ms in lines.items():
        n = len(ordered_ms)
        ranks = np.unique(np.linspace(0, n - 1, POINTS).astype(int))
        points = {"x": digits(ordered_ms[ranks]), "y": digits((ranks + 1) / n * 100)}
        drawn.append({**points, "mode": "lines", "name": name, "line": {"shape": "hv"}})
    return Figure(
        title,
        about,
        drawn,
        {
            "xaxis": {"title": "time, ms", "type": "log"},
            "yaxis": {"title": "share, %", "range": [0, 101]},
            "shapes": bounds,
        },
    )


def _tail(runs: Mapping[str, Array], bound_ms: float | None, far: str) -> Figure:
    """Plots latency against 1 - percentile on a logarithmic scale, with the slowest queries on the right.

    runs: (queries,) latencies in ms by name, ascending.
    """
    lines, rarest = [], 1.0
    for name, ordered_ms in runs.items():
        n = len(ordered_ms)
        slower = np.geomspace(1, 1 / n, POINTS)
        rarest = min(rarest, float(slower[-1]))
        ranks = (n * (1 - slower)).astype(int)
        ranks[-1] = n - 1  # rounding may have changed 1 - 1 / n
        lines.append(
            {"x": digits(slower), "y": digits(ordered_ms[ranks]), "mode": "lines", "name": name}
        )
    ticks = [share for share in _TICKS if share >= rarest * 0.99]
    names = [f"p{(1 - s) * 100:.10g}" for s in ticks]
    axis = {"title": "percentile", "type": "log"}
    return Figure(
        "Tail",
        f"The latency at each percentile, by the journal; latencies at the next mark to the right are ten times rarer.{far}",
        lines,
        {
            "xaxis": {**axis, "autorange": "reversed", "tickvals": ticks, "ticktext": names},
            "yaxis": {"title": "latency, ms", "type": "log"},
            "shapes": bound_line(bound_ms, "y"),
        },
    )


_MOST_BARS = 50
"""Largest ratio of two times that bars show."""


def stage_means(runs: Runs) -> Figure:
    """Plots a sample's mean time in each stage, with one bar per run, or with one mark per run on a logarithmic axis if
    bars would be too short to see.
    """
    means: dict[str, dict[str, float]] = {}
    for name, run in runs.items():
        assert run.done is not None
        means[name] = {
            stage: float(run.done.spent_ns(stage).mean()) / NS_PER_MS
            for stage in run.done.edges
            if stage not in waits_of_all(run.plan.scenario)
        }
    # A stage without time in every run, such as the queue of a closed loop, has no place on a logarithmic axis.
    stages = list(dict.fromkeys(stage for one in means.values() for stage in one if one[stage]))
    names = [words(stage) for stage in stages]
    series = {name: [one.get(stage) for stage in stages] for name, one in means.items()}
    title, about = "Where the time goes", "Mean time of a sample in each stage."
    known = [time_ms for times in series.values() for time_ms in times if time_ms]
    if not known or max(known) <= _MOST_BARS * min(known):
        return bars(title, about, ("stage", "time, ms"), names, series, "group")
    marks = [
        line(name, names, times, mode="markers", marker={"size": 12})
        for name, times in series.items()
    ]
    axes = {"xaxis": {"title": "stage"}, "yaxis": {"title": "time, ms", "type": "log"}}
    return Figure(title, about, marks, axes)


_LEAST_GROUP = 10
"""A group of samples between two percentiles has at least this many samples, unless the run has fewer."""


def _stages(run: Evidence) -> Figure:
    """Plots the share of each stage in the latency of groups of samples, each group between two percentiles of the
    latency. The mean latency of a group stands below its bar, because times of a median would be too short to see.
    """
    assert run.done is not None
    latency_ns = run.done.latency_ns
    marks = np.array([0, 25, 50, 75, 90, 99, 99.9, 100])
    ranks = (marks / 100 * len(latency_ns)).astype(int)
    # In a short run, few samples lie between two percentiles, and the last group gets those that lack a group.
    shown = [0]
    for i, rank in enumerate(ranks.tolist()[1:-1], start=1):
        if min(rank - ranks[shown[-1]], ranks[-1] - rank) >= _LEAST_GROUP:
            shown.append(i)
    shown.append(len(ranks) - 1)
    order = np.argsort(latency_ns, kind="stable")
    ranges = list(pairwise(ranks[shown].tolist()))
    means: dict[str, list[float]] = {}
    waits = waits_of_all(run.plan.scenario)
    for stage in (edge for edge in run.done.edges if edge not in waits):
        spent = run.done.spent_ns(stage)[order] / NS_PER_MS
        means[words(stage)] = [float(spent[first:last].mean()) for first, last in ranges]
    totals_ms = [sum(times) for times in zip(*means.values(), strict=True)]
    names = [
        f"to p{last:g}<br>{show_ns(total_ms * NS_PER_MS)}"
        for last, total_ms in zip(marks[shown][1:].tolist(), totals_ms, strict=True)
    ]
    made = bars(
        "Where the time goes",
        "Share of each stage in the time of the samples from one percentile of latency to the next"
        f"{', without the wait of all samples for their turn' if waits else ''}.",
        ("samples from one percentile to the next, with their mean time", "share of the time, %"),
        names,
        {
            stage: [100 * one / (total or 1.0) for one, total in zip(times, totals_ms, strict=True)]
            for stage, times in means.items()
        },
        "stack",
    )
    layout = {**made.layout, "yaxis": {**made.layout["yaxis"], "range": [0, 100]}}
    layout["xaxis"] = {**layout["xaxis"], "tickangle": 0}
    return made._replace(layout=layout)


def _batches(run: Evidence) -> Iterator[Figure]:
    """Yields a plot of the batch sizes if the run used more than one size."""
    assert run.done is not None
    _, first = np.unique(run.done.columns["batch"], return_index=True)
    sizes, counts = np.unique(run.done.columns["batch_size"][first], return_counts=True)
    if len(sizes) < 2:
        return
    # plotly makes bars as wide as the smallest distance between two sizes. A bar narrower than 1/200 of the axis would
    # be invisible.
    width = max(1.0, float(sizes[-1] - sizes[0]) / 200)
    bar = {"type": "bar", "x": sizes.tolist(), "y": counts.tolist(), "width": width}
    yield Figure(
        "Batch sizes",
        "Number of batches of each size.",
        [{**bar, "name": "batches"}],
        {
            # By default, plotly would place marks at fractions between two sizes.
            "xaxis": {
                "title": "batch, samples",
                "range": [0, float(sizes[-1]) * 1.02 + width],
                **({"dtick": 1} if sizes[-1] <= 16 else {}),
            },
            "yaxis": {"title": "number of batches", "tickformat": ","},
        },
    )
