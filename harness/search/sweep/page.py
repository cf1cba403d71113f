"""Writes sweep.html with a sweep's plots and table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.codes import CODES, without_markup
from harness.core.config.parse import leading, parse_slos
from harness.core.units import NS_PER_MS, show_rate
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading, is_doubted, task, verdict_of
from harness.results.pages.page import Article, Figure, RunLink
from harness.results.pages.plots import (
    INVALID,
    UNJUDGED,
    VALID,
    bound_line,
    line,
    rounded,
    token_limit,
)
from harness.search import token_times
from harness.search.sweep import caches
from harness.search.sweep import table as points
from harness.search.sweep.content import Content, Point
from harness.search.token_times import time_ns

PAGE = "sweep.html"
LATENCY = "Latency against requested rate"
"""Title of the first plot."""

_MARKS = {
    "knee": "#9a6700",
    "peak": UNJUDGED,
    "100 %": UNJUDGED,
    "highest VALID": VALID,
}
"""Colour of each vertical line, by the line's name."""

_NOISE_PERCENT = 2
"""The plot of the achieved rate is left out if no run differs from its offered rate by more than this noise."""

_CROSS = {"symbol": "circle-x-open", "size": 11, "color": INVALID, "line": {"width": 2}}
_DASHED = "; dashed: the SLO's bound"


class _Panel(NamedTuple):
    name: str
    field: str
    """Name of the field in `Point`."""
    scale: float
    unit: str
    about: str


_PANELS = (
    _Panel("tokens", "tokens_per_s", 1.0, "tokens/s", "tokens of all answers per second"),
    _Panel("wait", "wait_ns", 1 / NS_PER_MS, "ms", "mean wait until an instance took the query"),
    _Panel("batch size", "mean_batch", 1.0, "samples", "mean batch size"),
    _Panel(
        "utilisation", "busy_share", 100.0, "%", "share of the time in which an instance computed"
    ),
)
_FAR = 10
"""The axis of the rates is logarithmic if the largest exceeds the smallest by more than this factor."""
_AXES = ("", 2, 3, 4)
"""Suffixes of plotly's axis names. The first axis has no suffix."""


def write(content: Content, folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def badges(content: Content) -> Badges:
    made, parts = content["points"], [part for _, part in caches.parts(content)]
    doubted = is_doubted(made) or any(map(points.has_hole, parts))
    has_answer = any(map(points.highest_of, parts))
    return Badges("INVALID" if made and not has_answer else verdict_of(made), doubted)


def articles(content: Content, linked: Callable[[str], RunLink] | None = None) -> list[Article]:
    """linked: returns the link to a run's page, from the run's folder; None leaves the runs without links."""
    made = content["points"]
    swept = {**content["config"], "model": content["model"], "slo": content["slo"]}
    head = [heading(["Sweep", *task(swept)], badges(content))]
    lines = list(points.marks_of_all(content))
    head += page.conclusion(lines, points.main_label(lines))
    runs = [linked(point["folder"]) for point in made] if linked else []
    table = points.points_table(content)
    tail = list(page.section(table, runs=runs, cards=True)) if made else []
    codes = dict.fromkeys(code for point in made for code in point["reasons"])
    meanings = [(code, without_markup(CODES[code].meaning)) for code in codes if code in CODES]
    tail += [page.facts(meanings)] if meanings else []
    return [Article(head, [*figures_of_all(content)], tail)]


def figures_of_all(content: Content) -> Iterator[Figure]:
    """Yields a comparison of the cache states, and each state's figures; if the sweep has no cache states, yields the
    figures once.
    """
    yield from _by_cache(content)
    for cache, part in caches.parts(content):
        for figure in figures(part):
            title = f"{figure.title}, {cache} cache" if cache else figure.title
            yield figure._replace(title=title)


def _by_cache(content: Content) -> Iterator[Figure]:
    """Yields a plot that compares the cache states by the time to the first token or by the latency; yields nothing if
    the sweep has no cache states.
    """
    by_cache = [(cache, part["points"]) for cache, part in caches.parts(content) if cache]
    if not by_cache:
        return
    is_known = all(
        time_ns(point, "ttft_p50_ns") is not None for _, mine in by_cache for point in mine
    )
    name = "time to the first token" if is_known else "latency"

    def value_ns(point: Mapping[str, Any], percentile: str) -> float | None:
        found: float | None = point[f"{percentile}_ns"]
        return time_ns(point, f"ttft_{percentile}_ns") if is_known else found

    yield Figure(
        f"{name.capitalize()} by the state of the server's cache",
        "Percentiles of each run, VALID or not.",
        [
            line(
                f"{cache} {percentile}",
                [point["rate_per_s"] for point in mine],
                [rounded(value_ns(point, percentile), 1 / NS_PER_MS) for point in mine],
            )
            for cache, mine in by_cache
            for percentile in ("p50", "p99")
        ],
        {
            "xaxis": _rates_axis(content["points"]),
            "yaxis": {"title": f"{name}, ms", "type": "log"},
        },
    )


def figures(content: Content) -> Iterator[Figure]:
    """Yields plots against the requested rate, which also names the runs in the texts and the table: latency, achieved
    rate, wait, batch size and busy instances.
    """
    points = content["points"]
    if not points:
        return
    requested, rates = [point["rate_per_s"] for point in points], _rates_axis(points)
    invalid = [point for point in points if point["verdict"] != "VALID"]
    note = " Red crosses: INVALID, left out of the knee." if invalid else ""
    shapes, marks = _marks(content)
    slo = leading(parse_slos(content["slo"] or ""))
    bound_ms = slo.bound_ns / NS_PER_MS if slo else None

    def curve(name: str, field: str, scale: float = 1.0, **more: Any) -> Mapping[str, Any]:
        times: Iterator[Mapping[str, Any]] = (
            {**point, **(point.get("token_times") or {})} for point in points
        )
        values = [rounded(one.get(field), scale) for one in times]
        return line(name, requested, values, **more)

    yield Figure(
        LATENCY,
        f"Percentiles of each run{_DASHED if slo else ''}.{note}{_below(invalid, bound_ms)}",
        [
            *(curve(name, f"{name}_ns", 1 / NS_PER_MS) for name in ("p50", "p90", "p99")),
            *_crosses(invalid, [rounded(one["p99_ns"], 1 / NS_PER_MS) for one in invalid]),
            *marks,
        ],
        {
            "xaxis": rates,
            "yaxis": {"title": "latency, ms", "type": "log"},
            "shapes": [*shapes, *bound_line(bound_ms, "y")],
        },
    )
    shares = [_achieved_percent(point) for point in points]
    crossed = [_achieved_percent(point) for point in invalid]
    if any(share is not None and abs(share - 100) > _NOISE_PERCENT for share in shares):
        yield Figure(
            "Achieved rate",
            f"Share of the rate in LoadGen's schedule that was answered.{note}",
            [line("achieved", requested, shares), *_crosses(invalid, crossed)],
            {
                "xaxis": rates,
                "yaxis": {"title": "answered, %", "rangemode": "tozero"},
                "shapes": shapes,
            },
        )
    has_tokens = token_times.has_times(points)
    if has_tokens:
        times = token_times.fields(content["slo"])
        bounds = _token_bounds(content["slo"])
        yield Figure(
            "Token times",
            f"Percentiles of each run: the time to the first token, and the time per further token"
            f"{_DASHED if bounds else ''}.",
            [*(curve(name, field, 1 / NS_PER_MS) for name, field in times)],
            {
                "xaxis": rates,
                "yaxis": {"title": "time, ms", "type": "log"},
                "shapes": [*shapes, *bounds],
            },
        )
    panels = _PANELS if not has_tokens else [p for p in _PANELS if p.field != "mean_batch"]
    known = [panel for panel in panels if any(point.get(panel.field) for point in points)]
    if not known:
        return
    curves, layout = [], {}
    height = 0.85 if len(known) > 1 else 1.0  # the rest is the gap between two panels
    for row, (axis, panel) in enumerate(zip(_AXES, known, strict=False)):
        curves.append(curve(panel.name, panel.field, panel.scale, yaxis=f"y{axis}"))
        domain = [1 - (row + height) / len(known), 1 - row / len(known)]
        title = f"{panel.name}, {panel.unit}"
        layout[f"yaxis{axis}"] = {"title": title, "rangemode": "tozero", "domain": domain}
    # The last panel ends above the lower edge of the plot, where the lines would cross the axis's numbers.
    lowest = rounded((1 - height) / len(known))
    shapes = [{**shape, "y0": lowest} for shape in shapes]
    yield Figure(
        ", ".join(panel.name for panel in known).capitalize(),
        f"{'; '.join(panel.about for panel in known).capitalize()}.",
        [*curves, *marks],
        {"xaxis": {**rates, "anchor": f"y{axis}"}, **layout, "shapes": shapes},
        height_rem=Figure._field_defaults["height_rem"] + 7 * (len(known) - 1),
    )


def _rates_axis(points: Sequence[Point]) -> Mapping[str, Any]:
    rates = [point["rate_per_s"] for point in points]
    is_far = 0 < _FAR * min(rates) < max(rates)
    return {
        "title": "requested, queries/s",
        "tickformat": ",",
        **({"type": "log"} if is_far else {"rangemode": "tozero"}),
    }


def _crosses(invalid: Sequence[Point], values: Sequence[float | None]) -> list[Mapping[str, Any]]:
    """Marks the INVALID runs in red. values: the runs' values in the plot."""
    marked = line("INVALID", [one["rate_per_s"] for one in invalid], values, mode="markers")
    return [{**marked, "marker": _CROSS}] if invalid else []


def _below(invalid: Sequence[Point], bound_ms: float | None) -> str:
    """Explains INVALID runs below the bound that had too few queries; '' without such a run."""
    if bound_ms is None or not any(
        "early-stopping" in one["reasons"] and (one["p99_ns"] or 0) <= bound_ms * NS_PER_MS
        for one in invalid
    ):
        return ""
    return " A crossed run below the bound had too few queries to prove that it meets the bound."


def _achieved_percent(point: Point) -> float | None:
    return rounded(point["completed_per_s"], 100 / offered_per_s(point))


def _token_bounds(slo: str | None) -> list[Mapping[str, Any]]:
    """Returns a dashed line for each SLO on a token time, in the colour of the time's last drawn percentile."""
    drawn = {name.partition(" ")[0]: name for name, _ in token_times.fields(slo)}
    return [token_limit(one, "y", drawn[one.of.upper()]) for one in parse_slos(slo or "") if one.of]


def offered_per_s(point: Point) -> float:
    """Returns the rate in LoadGen's schedule, or the requested rate if the run left no schedule."""
    return float(point["scheduled_per_s"] or point["rate_per_s"])


def _marks(content: Content) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Returns vertical lines, with entries in the legend, for the knee and the measured peak. Without a peak that is
    VALID in the sweep, too, marks the highest VALID rate, and the rate at 100 % unless it is a search's, which the sweep
    refuted.
    """
    lines: list[Mapping[str, Any]] = []
    entries: list[Mapping[str, Any]] = []
    at_rate = {"knee": content["knee"]}
    scale, _ = points.scale(content)
    if content["peak"] is not None and scale != "search":
        at_rate[scale] = content["peak"]
    if scale != "peak":
        at_rate["highest VALID"] = points.highest_without_hole(
            content["points"], content["highest_valid"]
        )
    for name, rate in at_rate.items():
        if rate is None:
            continue
        stroke = {"color": _MARKS[name], "width": 1.5, "dash": "dot"}
        upright = {"type": "line", "x0": rate, "x1": rate, "y0": 0, "y1": 1, "yref": "paper"}
        lines.append({**upright, "line": stroke})
        entries.append(
            line(f"{name}, {show_rate(rate)}", [None], [None], mode="lines", line=stroke)
        )
    return lines, entries
