"""Writes overhead.html, which shows both medians, the steps between them, the pairs, and the table."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.core.units import NS_PER_MS, show_ns
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading, is_doubted
from harness.results.pages.page import Article, Figure, typeset
from harness.results.pages.plots import line, rounded, tall
from harness.search.overhead import table
from harness.search.overhead.content import Content, OverheadEntry
from harness.search.overhead.parts import FLOOR

PAGE = "overhead.html"
_TIME = {"title": "time, ms"}
_ROOM = 1.15
"""Length of the axis as a multiple of the longest bar, which leaves room for the text next to each bar."""

_UP, _DOWN, _TOTAL = "#b5651d", "#8a949e", "#2a78b5"
"""Colours for added times, subtracted times and totals."""


def write(content: Content, folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def badges(content: Content) -> Badges:
    verdict = "INVALID" if content["overhead"] is None else "VALID"
    return Badges(verdict, is_doubted(content["runs"]))


def articles(content: Content) -> list[Article]:
    sides = f"{'sides':<12}{table.sides(content)}"
    head = [
        heading(["Serving overhead", content["model"]], badges(content)),
        *page.conclusion([table.headline(content), sides, *table.facts(content)]),
    ]
    tail = [part for one in table.tables(content) for part in page.section(one, cards=True)]
    return [Article(head, list(figures(content)), tail)]


def figures(content: Content) -> Iterator[Figure]:
    """Yields a plot of the parts and a plot of the pairs' medians; yields nothing if no overhead is reported."""
    found = content["overhead"]
    if found is None:
        return
    yield _steps(found)
    pairs = content["pairs"]
    numbers = range(1, len(pairs) + 1)
    times_ns = {
        "in process": [pair["in_process_ns"] for pair in pairs],
        "served": [pair["served_ns"] for pair in pairs],
        "overhead": [pair["overhead_ns"] for pair in pairs],
    }
    yield Figure(
        "Pairs",
        "Median time of a query in each pair of an in-process run and a served run.",
        [
            line(name, numbers, [rounded(ns, 1 / NS_PER_MS) for ns in each])
            for name, each in times_ns.items()
        ],
        {"xaxis": {"title": "pair", "dtick": 1}, "yaxis": {**_TIME, "rangemode": "tozero"}},
    )


def _steps(found: OverheadEntry) -> Figure:
    """Draws the steps from the in-process median to the served median, and from there to the overhead."""
    parts = {n: part["mean_ns"] for n, part in found["parts"].items() if n != FLOOR}
    floor_ns = found["parts"][FLOOR]["mean_ns"] if FLOOR in found["parts"] else 0.0
    here, there = found["in_process"]["mean_ns"], found["served"]["mean_ns"]
    up = {"in process": here, **parts, "not explained": there - here - sum(parts.values())}
    down = {"less the client's floor": floor_ns, "less the time in process": -here}
    most = max(there, here + sum(map(abs, parts.values()))) / NS_PER_MS
    least = min(0.0, found["mean_ns"]) / NS_PER_MS
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "measure": [
            "absolute",
            *["relative"] * (len(up) - 1),
            "total",
            "relative",
            "relative",
            "total",
        ],
        "y": [*up, "served", *down, "overhead"],
        "x": [*_in_ms(up.values()), None, *_in_ms(down.values()), None],
        "text": [
            typeset(show_ns(ns)) for ns in (*up.values(), there, *down.values(), found["mean_ns"])
        ],
        "textposition": "outside",
        "cliponaxis": False,
        "increasing": {"marker": {"color": _UP}},
        "decreasing": {"marker": {"color": _DOWN}},
        "totals": {"marker": {"color": _TOTAL}},
    }
    return Figure(
        "From in process to served, and to the overhead",
        "Means of the pairs' medians. The overhead is the served time less the client's floor and the time in process.",
        [trace],
        {
            "xaxis": {**_TIME, "range": [least * _ROOM, most * _ROOM]},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        },
        tall(len(up) + len(down) + 2),
    )


def _in_ms(values_ns: Iterable[float]) -> list[float | None]:
    return [rounded(ns, 1 / NS_PER_MS) for ns in values_ns]
