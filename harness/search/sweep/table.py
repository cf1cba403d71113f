"""Extracts a point from each run in a sweep, finds the knee of the curve, and prints the table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.codes import CLIENT_BOUND
from harness.core.config.parse import leading, parse_slos
from harness.core.units import counted, show_percent, show_rate
from harness.results.pages.tables import Cell, Table, aligned, columns, without_empty
from harness.results.slos.shown import attainment, has_several, met_text
from harness.results.steady.shown import NOT_STEADY, verdict_of
from harness.run.study import (
    is_client_bound,
    machine_text,
    other_reason,
    shared_doubts,
    shared_lines,
    verdict_text,
)
from harness.search import token_times
from harness.search.peak.probe import busy_share, model_per_s
from harness.search.peak.table import is_idle, out_of_reach
from harness.search.sweep import caches
from harness.search.sweep.content import Content, Point

_NOT_VALID = "not valid"

_WAITING = ("issue_delay", "queue")
"""Stages that a query passes through before an instance or the client takes it."""


def is_usable(point: Point) -> bool:
    """Returns whether the client was not the limit, so that the point (VALID or INVALID) describes the rate."""
    return CLIENT_BOUND not in point["reasons"]


def point_of(
    result: Mapping[str, Any], folder: Path, below: Path, peak: float | None
) -> Point | None:
    """Returns a run's point; None if the run failed for a reason other than its rate or its client."""
    failed = other_reason(result) is not None and not is_client_bound(result)
    if failed or not result["queries"]:
        return None
    rates, latency = result["throughput_per_s"], result["latency_ns"] or {}
    return Point(
        rate_per_s=rates["asked"],
        share=rates["asked"] / peak if peak else None,
        scheduled_per_s=rates["scheduled"],
        completed_per_s=rates["completed"],
        p50_ns=latency.get("p50"),
        p90_ns=latency.get("p90"),
        p99_ns=latency.get("p99"),
        mean_ns=latency.get("mean"),
        mean_batch=result["queries"]["mean_batch"],
        busy_share=busy_share(result),
        model_per_s=model_per_s(result),
        queries=result["queries"]["planned"],
        late=result["queries"]["late"],
        verdict=result["verdict"],
        reasons=tuple(r["code"] for r in result["reasons"]),
        doubts=tuple(d["code"] for d in result["doubts"]),
        folder=str(folder.relative_to(below)),
        goodput_per_s=(result.get("goodput") or {}).get("per_s"),
        wait_ns=_wait_ns(result, latency.get("mean")),
        steady=verdict_of(result),
        cache=caches.cache_in(folder.name),
        cached_share=_cached_share(result.get("tokens") or {}),
        token_times=token_times.times_of(result),
        tokens_per_s=(result.get("tokens") or {}).get("output_per_s"),
        per_million=_per_million(result),
        **attainment(result),
    )


def _per_million(result: Mapping[str, Any]) -> float | None:
    cost = result.get("cost") or {}
    unit = "samples" if result.get("tokens") is None else "output_tokens"
    price: float | None = cost.get(f"per_million_{unit}")
    return price


def _cached_share(tokens: Mapping[str, Any]) -> float | None:
    cached, all_tokens = tokens.get("cached"), tokens.get("input")
    return cached / all_tokens if cached is not None and all_tokens else None


def _wait_ns(result: Mapping[str, Any], mean_ns: float | None) -> float | None:
    stages = result.get("stages_ns")
    if not stages or mean_ns is None:
        return None
    share: float = sum(stages[name]["share"] for name in _WAITING if name in stages)
    return share * mean_ns


LEAST_FOR_KNEE = 3


def knee(points: Sequence[Point]) -> float | None:
    """Returns the knee: the requested rate above which latency grows faster than throughput. The knee is the rate of
    the VALID point with the largest ratio of completed queries/s to mean latency. Returns None if there are fewer than
    LEAST_FOR_KNEE points, or if the ratio still grows at the highest rate.

    Source: Kleinrock, Power and deterministic rules of thumb (1979). Kleinrock calls this ratio the power. The ratio is
    largest at the point at which a line from the origin touches the curve of latency against throughput.
    """
    known = [p for p in points if p["verdict"] == "VALID" and p["completed_per_s"] and p["mean_ns"]]
    if len(known) < LEAST_FOR_KNEE:
        return None
    best = max(known, key=lambda p: (p["completed_per_s"] or 0.0) / (p["mean_ns"] or 1.0))
    is_reached = best["rate_per_s"] < max(p["rate_per_s"] for p in points)
    return best["rate_per_s"] if is_reached else None


def lines(content: Content, folder: Path) -> Iterator[str]:
    yield f"SWEEP  {'  '.join(words(content))}"
    yield ""
    table = points_table(content)
    yield from aligned(table.columns, table.rows)
    yield ""
    yield from marks_of_all(content)
    yield f"{'results':<12}{folder}"


def scale(content: Content) -> tuple[str, str]:
    """Returns the name of the rate that counts as 100 %, and the source of this rate. A rate from --peak is not called
    the peak, because no run has shown that the rate is VALID.
    """
    if content["peak_is_measured"]:
        at_peak = [p["verdict"] for p in content["points"] if p["rate_per_s"] == content["peak"]]
        if {*at_peak} - {"VALID"}:  # two answers to one question would contradict each other
            return (
                "search",
                "the search before the sweep found this rate VALID, but the sweep did not: measure again",
            )
        return (
            "peak",
            "the highest rate that the search before the sweep found VALID, 100 % in the table",
        )
    return "100 %", "the rate given with --peak"


def points_table(content: Content) -> Table:
    share = "of peak" if scale(content)[0] == "peak" else "share"
    heads = columns(
        f"requested/s [samples/s] | {share} [share] | offered/s [samples/s] | achieved/s [samples/s] | p50 [ns] | p90 [ns]"
        "| p99 [ns]"
    )
    names = ["scheduled_per_s", "completed_per_s", "p50_ns", "p90_ns", "p99_ns"]
    more_heads, more_cells = token_times.columns_of(content["points"], content["slo"])
    heads += more_heads
    priced = "output tokens" if any(p.get("tokens_per_s") for p in content["points"]) else "samples"
    heads += columns(
        f"tokens/s [samples/s] | per million {priced} [samples/s] | late [count] | verdict"
    )
    if judged := has_several(content["slo"]):
        heads[-1:-1] = columns("goodput/s [samples/s] | SLOs met")
    by_cache = content.get("by_cache") or {}
    if by_cache:
        heads[1:1] = columns("cache | from cache [share]")
    rows: list[list[Cell]] = []
    shared = shared_doubts(content["points"])
    for point in content["points"]:
        of_peak = None if point["share"] is None else show_percent(point["share"])
        knee_per_s = by_cache[point["cache"]]["knee"] if by_cache else content["knee"]
        mark = "  <- knee" if point["rate_per_s"] == knee_per_s else ""
        values: Mapping[str, Any] = point
        numbers: list[Cell] = [values[name] for name in names]
        numbers += more_cells(point)
        numbers += [point.get("tokens_per_s"), point.get("per_million"), point["late"]]
        numbers += [point.get("goodput_per_s"), met_text(point)] if judged else []
        state: list[Cell] = []
        if by_cache:
            cached = point["cached_share"]
            state = [point["cache"], None if cached is None else show_percent(cached)]
        rate = point["rate_per_s"]
        rows.append([rate, *state, of_peak, *numbers, verdict_text(point, shared, mark)])
    return without_empty(Table("points", "Points", "", heads, rows))


def marks_of_all(content: Content) -> Iterator[str]:
    """Yields the lines of `marks` for each cache state; if the sweep has no cache states, yields the lines once."""
    for cache, part in caches.parts(content):
        if cache:
            yield f"{'cache':<12}{cache}"
        yield from marks(part, cache)


def main_label(lines: Sequence[str]) -> str:
    """Returns the label of the line among `marks_of_all` that is the headline."""
    return "valid" if any(line.startswith("valid") for line in lines) else _NOT_VALID


def words(content: Content) -> list[str]:
    """Returns scenario, backend, model and SLO."""
    config = content["config"]
    return [config["scenario"], config["backend"], content["model"], content["slo"] or ""]


def marks(content: Content, cache: str = "") -> Iterator[str]:
    """Yields lines about the knee, the peak, the highest VALID rate, and what limits this rate.

    cache: state of the server's cache. The line about the highest VALID rate names the state, because this line also
    serves as a headline.
    """
    fastest_ns = content.get("fastest_ns")
    if fastest_ns is not None:
        yield f"{'stopped':<12}{out_of_reach(content['slo'] or '', fastest_ns)}"
    peak, highest, knee = content["peak"], content["highest_valid"], content["knee"]
    if knee is not None:
        yield f"{'knee':<12}{show_rate(knee)} queries/s: best ratio of throughput to mean latency"
    elif content["points"]:
        valid = sum(point["verdict"] == "VALID" for point in content["points"])
        why = f"it needs {LEAST_FOR_KNEE} VALID points, but there are {valid}"
        if valid >= LEAST_FOR_KNEE:
            why = "the ratio of throughput to mean latency still grows at the highest rate"
        yield f"{'knee':<12}none: {why}"
    if peak is not None:
        name, about = scale(content)
        yield f"{name:<12}{show_rate(peak)} queries/s: {about}{_not_reached(content, peak)}"
    if highest is not None:
        state = f" ({cache} cache)" if cache else ""
        yield from _highest(content["points"], highest, state, content.get("left", 0))
    elif content["points"]:
        yield _none_valid(content["points"])
    yield from _limits(content)


def _none_valid(points: Sequence[Point]) -> str:
    rates = sorted({point["rate_per_s"] for point in points})
    if len(rates) == 1:
        return f"{_NOT_VALID:<12}no rate: {show_rate(rates[0])} queries/s was INVALID"
    return f"{_NOT_VALID:<12}no rate: all {len(rates)} rates from {show_rate(rates[0])} to {show_rate(rates[-1])} queries/s were INVALID"


def _not_reached(content: Content, peak: float) -> str:
    """Returns a text with the highest share of the peak up to which all rates were VALID; '' if --peak was VALID or if no
    rate up to --peak failed.
    """
    points = [p for p in content["points"] if is_usable(p)]
    reached = any(p["verdict"] == "VALID" and p["rate_per_s"] >= peak for p in points)
    failed = any(p["verdict"] != "VALID" and p["rate_per_s"] <= peak for p in points)
    if content["peak_is_measured"] or reached or not failed:
        return ""
    sound = highest_without_hole(points, content["highest_valid"])
    most = (
        "no rate was VALID" if sound is None else f"VALID up to {show_percent(sound / peak)} of it"
    )
    return f", which was not reached: {most}"


def holes_below(points: Sequence[Point], highest: float) -> list[float]:
    """Returns the rates below the highest VALID rate that were not VALID. Such rates make the result less certain."""
    below = [p["rate_per_s"] for p in points if p["verdict"] != "VALID"]
    return sorted(rate for rate in below if rate < highest)


def has_hole(content: Content) -> bool:
    """Returns whether a rate below the highest VALID rate was not VALID."""
    highest = content["highest_valid"]
    return highest is not None and bool(holes_below(content["points"], highest))


def highest_of(part: Content) -> float | None:
    """Returns the highest VALID rate below which no rate failed; None if no such rate exists. part: one of
    `caches.parts`.
    """
    return highest_without_hole(part["points"], part["highest_valid"])


def highest_without_hole(points: Sequence[Point], highest: float | None) -> float | None:
    """Returns the highest VALID rate below which no rate failed; None if no such rate exists. highest: the highest
    VALID rate.
    """
    holes = [] if highest is None else holes_below(points, highest)
    if not holes:
        return highest
    rates = (p["rate_per_s"] for p in points if p["verdict"] == "VALID")
    return max((rate for rate in rates if rate < holes[0]), default=None)


def _highest(points: Sequence[Point], highest: float, state: str, left: int) -> Iterator[str]:
    """Yields the highest VALID rate below which no rate failed, and the VALID rates above failed rates.

    highest: the highest VALID rate. state: text about the state of the cache. left: number of rates that were not measured.
    """
    holes, sound = holes_below(points, highest), highest_without_hole(points, highest)
    if not holes:
        is_limit = any(p["verdict"] != "VALID" for p in points)
        about = "the highest requested rate that was VALID"
        if not is_limit:
            about = "every requested rate was VALID; the verb peak finds the highest"
            if left:
                about = f"every rate so far was VALID; {counted(left, 'rate')} not measured"
        yield f"{'valid':<12}{show_rate(highest)} queries/s{state}: {about}"
        return
    if sound is None:
        yield f"{'valid':<12}no rate{state}: every VALID rate has an INVALID rate below it"
    else:
        yield f"{'valid':<12}{show_rate(sound)} queries/s{state}: every rate up to it was VALID"
    rates = ", ".join(map(show_rate, holes))
    yield (
        f"{'hole':<12}VALID again at {show_rate(highest)} queries/s, although lower rates were INVALID ({rates} queries/s): "
        "measure them again before you quote the higher rate"
    )


def _limits(content: Content) -> Iterator[str]:
    """Yields the doubts that all points share, and signs that the machine rather than the model was the limit."""
    points, slo = content["points"], content["slo"]
    if text := machine_text(points):
        yield f"{'machine':<12}{text}: stop other programs and sweep again"
    yield from shared_lines(points)
    if unusable := [show_rate(p["rate_per_s"]) for p in points if not is_usable(p)]:
        yield (
            f"{'not usable':<12}the client was the limit at {', '.join(unusable)} queries/s ({CLIENT_BOUND}): the same command "
            "with this --out measures these points again"
        )
    met = [p for p in points if p["verdict"] == "VALID" and p.get("steady") == NOT_STEADY]
    if met:
        rates = ", ".join(show_rate(p["rate_per_s"]) for p in met)
        yield f"{'steady':<12}the runs at {rates} queries/s were not steady: a longer run may miss the SLO"
    missed = [p for p in points if "slo-missed" in p["reasons"]]
    first = min(missed, key=lambda p: p["rate_per_s"], default=None)
    bound = leading(parse_slos(slo or ""))
    if first is None or bound is None:
        return
    busy = first["busy_share"]
    if busy and is_idle(busy, first["p50_ns"], bound.bound_ns):
        alone = first["model_per_s"] or (first["completed_per_s"] or 0.0) / busy
        yield (
            f"{'limit':<12}delays of the machine, not the model, made {show_rate(first['rate_per_s'])} "
            f"queries/s miss {slo}: the instances computed for {show_percent(busy)} of "
            f"the time, and the model alone could answer about {show_rate(alone)} queries/s"
        )
