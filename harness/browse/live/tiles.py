"""Picks the numbers at the top of a live page. Contains only pure functions.

A run in progress and a finished run have the same tiles, so that the page keeps its layout. A tile without a number shows
a dash.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.browse.live.past import Past
from harness.browse.live.points import LEAST, final_rate, final_times_s, quantile_s
from harness.core.codes import HOPELESS
from harness.core.config.parse import Slo, parse_slos
from harness.core.registry import SCENARIOS
from harness.core.stats import late_allowed
from harness.core.units import NS_PER_S, counted, show_duration, show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.answer.answer import beside
from harness.results.pages.tiles import Tile
from harness.run.supervisor.metrics.course import Buckets, Snapshot, bounds_of
from harness.run.supervisor.metrics.live_counts import EDGES_NS

NEAR = 0.9
"""From this share of its bound on, a number almost reaches the bound. The charts use the same share (live.js)."""

_MOST_QUERIES = 1_000_000_000
"""A result with more queries is not genuine, and would take minutes to judge."""

RATE = "Completed rate"
"""Label of a tile, as on the page of a finished run."""

BEFORE = "Before the first query"
SINCE_START = "Since the start"
"""Time that the tiles of a run cover, except tiles that name another time."""

UNKNOWN = "-"
_TOKENS = "Answer tokens"
AT_LEAST = "≥\u202f"

Latest = Callable[[str, str], float | None]
"""Returns the latest value in a chart's series; None if unknown."""

Percentile = Callable[[str], float | None]
"""Returns a percentile, such as `p99`, in s; None if unknown."""


def live_tiles(state: Snapshot, latest: Latest) -> list[Tile]:
    """Returns the tiles for a run in progress. Percentiles and counts cover the time since the start of the phase."""
    totals, unit = state.totals, _unit(is_all_at_once=state.counts_samples)
    kinds = {kind: totals.token_times.get(kind, ()) for kind in _token_kinds(totals.token_bounds_s)}
    kinds |= totals.token_times
    times = _times(
        {} if state.counts_samples else {"": _percentile(totals.latency)},
        {kind: _percentile(found) for kind, found in kinds.items()},
        [*totals.bounds_s, *totals.token_bounds_s],
    )
    found = []
    for kind, tile in times:
        few = _few(kinds.get(kind, totals.latency))
        if state.phase == "accuracy":  # no SLO judges this phase
            found.append(Tile(tile.label, tile.number, few))
        else:
            about = "; ".join(filter(None, (tile.about, few)))
            found.append(tile._replace(about=about))
            if few:  # a percentile of few answers is nearly the slowest answer, so it has no colour
                found[-1] = found[-1]._replace(is_bad=False, is_doubtful=False)
    if kinds:
        per_s = totals.tokens / state.elapsed_s if state.elapsed_s else None
        found.append(_rate(_TOKENS, per_s, "tokens", _last_second(latest("tokens", "answered"))))
    found += _late_so_far(state)
    # The last second of a phase may lack most of its answers.
    now = "" if state.is_answered else _last_second(latest("rate", "answered"))
    about = "; ".join(filter(None, (_requested(state.offered), now)))
    found.append(_rate(RATE, state.rate, unit[1], about))
    waiting = f"{totals.waiting:,.0f} in the queue" if totals.waiting else ""
    return found + _counts(state.completed, state.in_flight, state.failed, unit, waiting)


def final_tiles(result: Mapping[str, Any]) -> list[Tile]:
    """Returns the tiles of `live_tiles` for a finished run. result: content of result.json."""
    scenario, queries = scenario_named(result["scenario"]), result.get("queries") or {}
    unit = _unit(is_all_at_once=scenario.all_at_once)
    bounds_s, token_bounds_s = bounds_of(parse_slos(result.get("slo") or ""))
    times_s = final_times_s(result)
    latency = {} if scenario.all_at_once else {"": times_s[""].get}
    bounded = _token_kinds(token_bounds_s)
    kinds = {
        kind: found.get
        for kind, found in times_s.items()
        if kind in bounded or (found and kind in ("ttft", "tpot"))
    }
    times = _times(latency, kinds, [*bounds_s, *token_bounds_s])
    found = [tile._replace(is_doubtful=False) for _, tile in times]
    if _is_hopeless(result):
        # The bound applies to the planned queries, not only to those that were answered.
        of_answered = "of the queries that were answered"
        found = [tile._replace(about=of_answered, is_bad=False) for tile in found]
    if kinds:
        found.append(_rate(_TOKENS, (result.get("tokens") or {}).get("output_per_s"), "tokens"))
    found += _late(result, is_single=not (scenario.all_at_once or scenario.by_query))
    asked = (result.get("throughput_per_s") or {}).get("asked")
    found.append(_rate(RATE, final_rate(result), unit[1], _requested(asked)))
    per_query = 1 if scenario.all_at_once else queries.get("samples_per_query") or 1
    answered, failed, issued = (
        queries.get(f"samples_{name}") or 0 for name in ("answered", "failed", "issued")
    )
    left = max(0, issued - answered)
    waiting = "unanswered when the run was ended" if left else ""
    return found + _counts(answered / per_query, left, failed / per_query, unit, waiting)


def opening_tiles(options: Mapping[str, Any]) -> list[Tile]:
    """Returns the tiles of a run before its first query. options: the run's options by key, as in config.yaml."""
    slo = options.get("slo") or ""
    known = {
        "scenario": options["scenario"],
        "slo": slo if isinstance(slo, str) else " ".join(slo),
        "throughput_per_s": {"asked": options.get("target_qps")},
    }
    found = [tile._replace(number=UNKNOWN) for tile in final_tiles(known)]
    scenario, slos = scenario_named(options["scenario"]), parse_slos(known["slo"])
    has_bound = any(not slo.of for slo in slos) or (scenario.scheduled and not slos)
    if has_bound and not (scenario.all_at_once or scenario.by_query):
        place = next(i for i, tile in enumerate(found) if tile.label == RATE)
        found.insert(place, Tile("Late", UNKNOWN))
    return found


def current_tiles(past: Past) -> tuple[Sequence[Tile], str]:
    """Returns the tiles of the run in progress, and what they show. The accuracy phase keeps the numbers of the performance
    phase before it, because its own latencies and rate are not part of the result.
    """
    assert past.begun is not None
    if past.has_measured:
        assert past.measured is not None
        return live_tiles(past.measured, past.latest), "Performance phase"
    return live_tiles(past.begun, past.latest), SINCE_START


def brief(shown: Sequence[Tile]) -> Sequence[Tile]:
    """Returns the number that the SLO judges, and the rate, if they are known."""
    pair = [tile for i, tile in enumerate(shown) if not i or tile.label == RATE]
    return [tile for tile in pair if tile.number != UNKNOWN]


def _unit(*, is_all_at_once: bool) -> tuple[str, str]:
    return ("sample", "samples") if is_all_at_once else ("query", "queries")


def _last_second(per_s: float | None) -> str:
    return "" if per_s is None else f"{show_rate(per_s)} in the last second"


def _rate(label: str, per_s: float | None, many: str, about: str = "") -> Tile:
    return Tile(label, UNKNOWN if per_s is None else f"{show_rate(per_s)} {many}/s", about)


def _counts(
    answered: float, in_flight: float, failed: float, unit: tuple[str, str], waiting: str = ""
) -> list[Tile]:
    """answered, failed: in `unit`. in_flight: in samples."""
    return [
        Tile("Answered", counted(int(answered), *unit)),
        Tile("In flight", counted(int(in_flight), "sample"), waiting),
        Tile("Failed", counted(int(failed), *unit), is_bad=failed > 0),
    ]


def _requested(per_s: float | None) -> str:
    return "" if per_s is None else f"of {show_rate(per_s)} requested"


def _percentile(times: Buckets) -> Percentile:
    return lambda name: quantile_s(times, float(name[1:]) / 100)


def _few(times: Buckets) -> str:
    count = sum(times)
    return f"of {counted(count, 'answer')}" if 0 < count < LEAST else ""


def _token_kinds(bounds_s: Sequence[tuple[str, float]]) -> Sequence[str]:
    return [*dict.fromkeys(name.partition(" ")[0].lower() for name, _ in bounds_s)]


def _times(
    latency: Mapping[str, Percentile],
    tokens: Mapping[str, Percentile],
    bounds_s: Sequence[tuple[str, float]],
) -> list[tuple[str, Tile]]:
    """Returns kinds of times with the tiles of their percentiles. Times with a bound come first.

    latency: the percentiles of '', or nothing in Offline, which has no latency. tokens: percentiles by kind, such as
    `ttft`. bounds_s: bounds in s, named as in the charts.
    """
    found: list[tuple[bool, str, Tile]] = []
    for kind, value_s in {**latency, **tokens}.items():
        start = f"{kind.upper()} ".lstrip()
        bounds = {
            name.removeprefix(start): bound_s
            for name, bound_s in bounds_s
            if (name.startswith(start) if kind else " " not in name)
        }
        median_s = value_s("p50")
        for name in bounds or ("p99",):
            label = f"{start}{name}" if kind else f"{name} latency"
            tile = _time(label, value_s(name), bounds.get(name))
            if kind and median_s is not None:
                middle = f"p50 {show_ns(median_s * NS_PER_S)}"
                tile = tile._replace(about="; ".join(filter(None, (tile.about, middle))))
            found.append((not bounds, kind, tile))
        if not kind and not tokens:
            found.append((True, kind, _time("p50 latency", median_s, None)))
    return [(kind, tile) for _, kind, tile in sorted(found, key=lambda one: one[0])]


def _time(label: str, value_s: float | None, bound_s: float | None) -> Tile:
    if value_s is None:
        allowed = (
            "" if bound_s is None else f"of {show_duration(round(bound_s * NS_PER_S))} allowed"
        )
        return Tile(label, UNKNOWN, allowed)
    value_ns = value_s * NS_PER_S
    if bound_s is None:
        return Tile(label, show_ns(value_ns))
    about = beside(value_ns, round(bound_s * NS_PER_S)).lstrip(" ,")
    is_late, is_near = value_s > bound_s, NEAR * bound_s <= value_s <= bound_s
    about += f", at most {show_percent(1 - NEAR)} left" if is_near else ""
    return Tile(label, show_ns(value_ns), about, is_late, is_near)


def _late_so_far(state: Snapshot) -> Iterator[Tile]:
    """Yields the number of late queries, and how many the SLO allows in the planned queries. Of several bounds, takes the
    bound that most queries miss, relative to the allowed number. The bucket that contains the bound does not count, so
    the number is a lower limit.
    """
    is_single = state.scenario in SCENARIOS and not scenario_named(state.scenario).by_query
    if not (is_single and state.planned and state.phase == "performance"):
        return
    found = []
    for name, bound_s in () if state.counts_samples else state.totals.bounds_s:
        first = int(np.searchsorted(EDGES_NS, round(bound_s * NS_PER_S))) + 1
        found.append((float(name[1:]) / 100, sum(state.totals.latency[first:])))
    yield from _most_missed(found, int(state.planned), AT_LEAST)


def _late(result: Mapping[str, Any], *, is_single: bool) -> Iterator[Tile]:
    """Yields the tile of `_late_so_far` for a finished run. is_single: whether a query has one sample."""
    judged = (result.get("goodput") or {}).get("slos") or ()
    slos = {str(slo): slo for slo in parse_slos(result.get("slo") or "")}
    # LoadGen counts the late queries of a single bound.
    by_loadgen = (result.get("queries") or {}).get("late") if len(slos) == 1 else None
    found = {
        (slo.percentile, one["late"] if by_loadgen is None else by_loadgen): one["of"]
        for one in (judged if is_single else ())
        if (slo := slos.get(one["slo"])) is not None and not slo.of and one["of"]
    }
    if not _is_hopeless(result):
        yield from _most_missed(list(found), max(found.values(), default=0))
    elif found:  # more than LoadGen allows for the planned queries, although the answered ones may have fewer
        late = max(late for _, late in found)
        number = f"{AT_LEAST}{counted(late, 'query', 'queries')}"
        yield Tile("Late", number, "too many, so the run was ended", is_bad=True)


def _is_hopeless(result: Mapping[str, Any]) -> bool:
    return any(reason["code"] == HOPELESS for reason in result.get("reasons") or ())


def _most_missed(
    found: Sequence[tuple[float, int]], queries: int, at_least: str = ""
) -> Iterator[Tile]:
    """Yields the tile of the bound that most queries miss, relative to the allowed number. found: percentiles, between 0
    and 1, and their numbers of late queries. at_least: sign before a number that is a lower limit.
    """
    for percentile, late in sorted(found, key=lambda one: one[1] / (1 - one[0]))[-1:]:
        # LoadGen's early stopping allows fewer than the percentile alone, which the reason of a missed SLO names.
        allowed = max(0, late_allowed(min(queries, _MOST_QUERIES), percentile))
        by_percentile = math.ceil(round(queries * (1 - percentile), 6)) - 1
        most, how = (
            (by_percentile, "") if late > by_percentile else (allowed, ", by early stopping")
        )
        number = counted(late, "query", "queries")
        about = f"{Slo(percentile, 0).name} allows at most {most:,} of {queries:,}{how}"
        yield Tile("Late", f"{at_least if late else ''}{number}", about, late > allowed)
