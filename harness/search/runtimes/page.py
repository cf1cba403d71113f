"""Writes runtimes.html. For each model, it shows the leading cell, bars of the speeds with intervals, and the table."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS, NS_PER_US
from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bars_in_rows, rounded
from harness.search.runtimes import table
from harness.search.runtimes.table import RANKED

PAGE = "runtimes.html"

_QUALIFY = ("but", "time limit", "machine", "doubt")
"""Labels of facts that limit the conclusion. All other facts explain the table."""


def write(content: Mapping[str, Any], folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Mapping[str, Any]) -> list[Article]:
    return [_article(content, one) for one in content["models"]]


def _article(content: Mapping[str, Any], one: Mapping[str, Any]) -> Article:
    command, facts = table.next_command(content), [*table.facts(one)]
    limits = [fact for fact in facts if fact[0] in _QUALIFY]
    head = [
        f"<h1>Runtimes · {escape(content['scenario'])} · {escape(one['model'])}</h1>",
        f'<p class="headline">{escape(table.headline(one))}</p>',
        *([page.facts(limits)] if limits else []),
        page.command_html(content["command"]),
    ]
    tail = [
        *page.section(table.table_of(one)),
        page.table(("about", "text"), [fact for fact in facts if fact not in limits]),
        *([f"<p>next:</p>{page.command_html(command)}"] if command else []),
    ]
    return Article(head, list(figures(one)), tail)


def figures(one: Mapping[str, Any]) -> Iterator[Figure]:
    """Yields a plot of the deciding number for the ranked cells, with the fastest on top."""
    decides = one["decides"]
    ranked = [
        (cell["name"], cell["numbers"][decides])
        for cell in one["cells"]
        if cell["state"] == RANKED and decides in cell["numbers"]
    ]
    if not ranked:
        return
    names = [name for name, _ in ranked]
    numbers = [number for _, number in ranked]
    title, unit, scale, shorter = _axis(decides, max(number["mean"] for number in numbers))
    above = [_length(number["high"], number["mean"], scale) for number in numbers]
    below = [_length(number["mean"], number["low"], scale) for number in numbers]
    yield bars_in_rows(
        title,
        f"{shorter} is faster. The thin line is the 95 % interval, over the rounds if there were three or more, else "
        "within the runs.",
        {"title": unit, "rangemode": "tozero"},
        names,
        {title: [number["mean"] * scale for number in numbers]},
        "group",
        error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": below},
        showlegend=False,
    )


def _axis(decides: str, most: float) -> tuple[str, str, float, str]:
    """Returns the title, the unit, the factor of the unit, and whether a longer or a shorter bar is better.

    most: the largest value.
    """
    if decides == "throughput":
        return "Samples per second", "samples/s", 1.0, "Longer"
    unit, size = ("ms", NS_PER_MS) if most >= NS_PER_MS else ("µs", NS_PER_US)
    return f"Latency at {decides}", unit, 1 / size, "Shorter"


def _length(high: float | None, low: float | None, scale: float) -> float:
    """Returns the length of one side of an interval; 0 if the end of the interval is unknown."""
    return 0.0 if high is None or low is None else rounded(high - low, scale) or 0.0
