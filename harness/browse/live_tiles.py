"""Picks the numbers at the top of a live page. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.browse.live import Buckets, Snapshot
from harness.browse.points import quantile_s
from harness.core.units import NS_PER_S, counted, show_ns, show_rate
from harness.results.answer.answer import beside
from harness.results.pages.tiles import Tile

Latest = Callable[[str, str], float | None]
"""Returns the latest value of a chart's series; None if it is unknown."""


def live_tiles(state: Snapshot, latest: Latest) -> list[Tile]:
    """Returns the tiles of a run in progress. Percentiles and counts are since the start of the phase."""
    one, many = ("sample", "samples") if state.counts_samples else ("query", "queries")
    found = [*_latencies(state), *_tokens(state, latest), *_rate(state, latest, many)]
    found.append(Tile("Answered", counted(int(state.completed), one, many)))
    waiting = state.totals.waiting
    about = f"{waiting:,.0f} in the queue" if waiting else ""
    found.append(Tile("In flight", counted(int(state.in_flight), "sample"), about))
    found.append(Tile("Failed", counted(int(state.failed), one, many), is_bad=state.failed > 0))
    return found


def _latencies(state: Snapshot) -> Iterator[Tile]:
    """Yields the percentiles of the SLO next to their bounds, or else p99, then p50. Offline has no latency."""
    if not state.counts_samples:
        bounds = dict(state.totals.bounds_s)
        yield from _times("latency", state.totals.latency, bounds)


def _times(name: str, times: Buckets, bounds: Mapping[str, float]) -> Iterator[Tile]:
    """Yields percentiles of a time. bounds: bound in s by percentile."""
    for percentile in dict.fromkeys((*(bounds or ("p99",)), "p50")):
        if (value_s := quantile_s(times, float(percentile[1:]) / 100)) is None:
            continue
        value_ns = value_s * NS_PER_S
        bound_s = bounds.get(percentile)
        is_late = bound_s is not None and value_s > bound_s
        about = "" if bound_s is None else beside(value_ns, round(bound_s * NS_PER_S)).lstrip(" ,")
        label = f"{percentile} {name} so far"
        yield Tile(label, show_ns(value_ns), about, is_late, is_good=bool(about) and not is_late)


def _tokens(state: Snapshot, latest: Latest) -> Iterator[Tile]:
    if (per_s := latest("tokens", "answered")) is not None:
        yield Tile("Tokens in the last second", f"{show_rate(per_s)} tokens/s")
    for kind, times in state.totals.token_times.items():
        yield from _times(kind.upper(), times, _of(kind, state.totals.token_bounds_s))


def _of(kind: str, bounds_s: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """Returns the bounds of one token time by percentile."""
    start = f"{kind.upper()} "
    return {name.removeprefix(start): bound for name, bound in bounds_s if name.startswith(start)}


def _rate(state: Snapshot, latest: Latest, many: str) -> Iterator[Tile]:
    now = latest("rate", "answered")
    parts = {"requested": state.offered, "since the start": state.rate}
    about = ", ".join(f"{show_rate(v)} {name}" for name, v in parts.items() if v is not None)
    if now is not None:
        yield Tile("Rate in the last second", f"{show_rate(now)} {many}/s", about)
