"""Writes overhead.html, which shows the two medians, the steps between them, the pairs, and the table."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_US
from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import line, rounded, tall
from harness.search.overhead import table
from harness.search.overhead.parts import FLOOR

PAGE = "overhead.html"
_UNIT = {"title": "µs"}


def write(content: Mapping[str, Any], folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Mapping[str, Any]) -> list[Article]:
    head = [
        f"<h1>Serving overhead · {escape(content['model'])}</h1>",
        *page.conclusion([table.headline(content), *table.facts(content)]),
        f'<p class="quiet">{escape(table.sides(content))}</p>',
    ]
    tail = [part for one in table.tables(content) for part in page.section(one)]
    return [Article(head, list(figures(content)), tail)]


def figures(content: Mapping[str, Any]) -> Iterator[Figure]:
    """Yields a plot of the parts and a plot of the pairs' medians. Yields nothing without an overhead."""
    found = content["overhead"]
    if found is None:
        return
    yield _steps(found)
    names = ("in process", "served", "overhead")
    keys = ("in_process_ns", "served_ns", "overhead_ns")
    pairs = content["pairs"]
    numbers = range(1, len(pairs) + 1)
    yield Figure(
        "Pairs",
        "Medians of a query in each pair of a run in process and a served run.",
        [
            line(name, numbers, [rounded(pair[key], 1 / NS_PER_US) for pair in pairs])
            for name, key in zip(names, keys, strict=True)
        ],
        {"xaxis": {"title": "pair", "dtick": 1}, "yaxis": {**_UNIT, "rangemode": "tozero"}},
    )


def _steps(found: Mapping[str, Any]) -> Figure:
    """Draws the steps from the median in process to the served median, including an unexplained rest."""
    parts = {n: part["mean_ns"] for n, part in found["parts"].items() if n != FLOOR}
    here, there = found["in_process"]["mean_ns"], found["served"]["mean_ns"]
    steps = {"in process": here, **parts, "not explained": there - here - sum(parts.values())}
    measures = ["absolute", *["relative"] * (len(steps) - 1), "total"]
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "measure": measures,
        "y": [*steps, "served"],
        "x": [*(rounded(ns, 1 / NS_PER_US) for ns in steps.values()), None],
    }
    return Figure(
        "From in process to served",
        "Means of the pairs' medians. The parts include the client's floor, which is not overhead.",
        [trace],
        {"xaxis": _UNIT, "yaxis": {"autorange": "reversed", "automargin": True}},
        tall(len(measures)),
    )
