"""Picks the numbers at the top of a live page. Contains only pure functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from harness.browse.live.points import LEAST, quantile_s
from harness.core.registry import SCENARIOS
from harness.core.units import NS_PER_S, counted, show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.answer.answer import beside
from harness.results.pages.tiles import Tile
from harness.run.supervisor.metrics.course import Buckets, Snapshot
from harness.run.supervisor.metrics.live_counts import EDGES_NS

NEAR = 0.9
"""From this share of its bound on, a number almost reaches the bound. The charts use the same share (live.js)."""

_ROUNDING = 1e-6

Latest = Callable[[str, str], float | None]
"""Returns the latest value in a chart's series; None if unknown."""


def live_tiles(state: Snapshot, latest: Latest, *, is_disturbed: bool = False) -> list[Tile]:
    """Returns the tiles for a run in progress. Percentiles and counts cover the time since the start of the phase.

    is_disturbed: whether the page warns that other programs may change the numbers.
    """
    one, many = ("sample", "samples") if state.counts_samples else ("query", "queries")
    times = [*_latencies(state), *_tokens(state, latest)]
    times.sort(key=lambda tile: not (tile.is_good or tile.is_bad))  # times with a bound come first
    found = [one._replace(is_good=one.is_good and not is_disturbed) for one in times]
    found += _late(state)
    found += _rate(state, latest, many)
    found.append(Tile("Answered", counted(int(state.completed), one, many)))
    waiting = state.totals.waiting
    about = f"{waiting:,.0f} in the queue" if waiting else ""
    found.append(Tile("In flight", counted(int(state.in_flight), "sample"), about))
    found.append(Tile("Failed", counted(int(state.failed), one, many), is_bad=state.failed > 0))
    return found


def _late(state: Snapshot) -> Iterator[Tile]:
    """Yields the number of late queries, and how many the SLO allows in the planned queries. Of several bounds, takes the
    bound that most queries miss, relative to the allowed number. The bucket that contains the bound does not count, so
    the number is a lower limit.
    """
    is_single = state.scenario in SCENARIOS and not scenario_named(state.scenario).by_query
    if not (is_single and state.planned and state.phase == "performance"):
        return
    planned, found = int(state.planned), []
    for name, bound_s in () if state.counts_samples else state.totals.bounds_s:
        first = int(np.searchsorted(EDGES_NS, round(bound_s * NS_PER_S))) + 1
        late, share = sum(state.totals.latency[first:]), 1 - float(name[1:]) / 100
        found.append((late / share, name, late, int(planned * share + _ROUNDING)))
    for _, name, late, allowed in sorted(found)[-1:]:
        about = f"{name} allows at most {allowed:,} of {planned:,}"
        number = f"≥\u202f{counted(late, 'query', 'queries')}"
        yield Tile("Late so far", number, about, late > allowed)


def _latencies(state: Snapshot) -> Iterator[Tile]:
    """Yields the latency's percentiles, then its median. Offline has no latency."""
    if not state.counts_samples:
        times = state.totals.latency
        yield from _times("latency", times, dict(state.totals.bounds_s))
        if not state.totals.token_times and (median_s := quantile_s(times, 0.5)) is not None:
            yield Tile("p50 latency so far", show_ns(median_s * NS_PER_S))


def _times(name: str, times: Buckets, bounds: Mapping[str, float]) -> Iterator[Tile]:
    """Yields the percentiles that have a bound, or the p99 if no percentile has a bound. The tile of a percentile of few
    answers states their number. bounds: bound in s by percentile.
    """
    count = sum(times)
    few = f"of {counted(count, 'answer')}" if count < LEAST else ""
    for percentile in bounds or ("p99",):
        if (value_s := quantile_s(times, float(percentile[1:]) / 100)) is None:
            continue
        value_ns, bound_s = value_s * NS_PER_S, bounds.get(percentile)
        label = f"{percentile} {name} so far"
        if bound_s is None:
            yield Tile(label, show_ns(value_ns), few)
        else:
            about = beside(value_ns, round(bound_s * NS_PER_S)).lstrip(" ,")
            is_late, is_near = value_s > bound_s, NEAR * bound_s <= value_s <= bound_s
            about += f", at most {show_percent(1 - NEAR)} left" if is_near else ""
            about += f", {few}" if few else ""
            yield Tile(label, show_ns(value_ns), about, is_late, not is_late, is_near)


def _tokens(state: Snapshot, latest: Latest) -> Iterator[Tile]:
    """Yields the token times with their medians, then tokens/s."""
    for kind, times in state.totals.token_times.items():
        median_s = quantile_s(times, 0.5)
        middle = "" if median_s is None else f"p50 {show_ns(median_s * NS_PER_S)}"
        for tile in _times(kind.upper(), times, _of(kind, state.totals.token_bounds_s)):
            yield tile._replace(about="; ".join(filter(None, (tile.about, middle))))
    if (per_s := latest("tokens", "answered")) is not None:
        yield Tile("Tokens in the last second", f"{show_rate(per_s)} tokens/s")


def _of(kind: str, bounds_s: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """Returns the bounds on one token time, by percentile."""
    start = f"{kind.upper()} "
    return {name.removeprefix(start): bound for name, bound in bounds_s if name.startswith(start)}


def _rate(state: Snapshot, latest: Latest, many: str) -> Iterator[Tile]:
    now = latest("rate", "answered")
    parts = {"requested": state.offered, "since the start": state.rate}
    about = ", ".join(f"{show_rate(v)} {name}" for name, v in parts.items() if v is not None)
    if now is not None:
        yield Tile("Rate in the last second", f"{show_rate(now)} {many}/s", about)
