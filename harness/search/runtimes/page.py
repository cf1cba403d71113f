"""Writes runtimes.html. For each model, the page shows the leading cell, bars of the speeds with intervals, and the
table.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.results.compare.compare import BETTER, SAME
from harness.results.numbers import SPEEDS
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure, typeset
from harness.results.pages.plots import bars_in_rows, rounded
from harness.results.pages.tables import show_cell, with_intervals
from harness.search.runtimes import table
from harness.search.runtimes.table import RANKED

PAGE = "runtimes.html"

_MOST_RATIO = 2.0
"""The axis ends at this ratio, because the long intervals of a few very different runs would leave too little room for
the bars.
"""

_MEASURED = "with interval"

_QUALIFY = ("but", "reference", "time limit", "machine", "doubt")
"""Labels of facts that limit the conclusion. All other facts explain the table."""


def write(content: Mapping[str, Any], folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Mapping[str, Any]) -> list[Article]:
    return [_article(content, one) for one in content["models"]]


def _article(content: Mapping[str, Any], one: Mapping[str, Any]) -> Article:
    command, facts = table.next_command(content), [*table.facts(one)]
    limits = [f"{label:<12}{text}" for label, text in facts if label in _QUALIFY]
    state = _state(one)
    head = [
        heading(["Runtimes", content["scenario"], one["model"]], _badges(one)),
        page.headline(table.headline(one)),
        *(['<p class="quiet">The ranked runs are VALID.</p>'] if state != "INVALID" else []),
        page.command_html(content["command"]),
        *page.labelled(limits),
        *([f"<p>Next:</p>{page.command_html(command)}"] if command else []),
    ]
    tail = [
        *page.section(with_intervals(table.table_of(one)), cards=True),
        page.facts([fact for fact in facts if fact[0] not in _QUALIFY]),
    ]
    return Article(head, list(figures(one)), tail)


def badges(content: Mapping[str, Any]) -> Badges:
    """Returns the badges of a comparison for one model; no badges for several models."""
    return _badges(content["models"][0]) if len(content["models"]) == 1 else Badges()


def _badges(one: Mapping[str, Any]) -> Badges:
    state = _state(one)
    is_limited = any(label in _QUALIFY for label, _ in table.facts(one))
    return Badges(state, is_limited and state != "UNDECIDED")


def _state(one: Mapping[str, Any]) -> str:
    """Returns the badge. VALID runs alone would seem to approve an order that is not proven."""
    ahead = one["ahead"]
    if ahead is None:
        return "INVALID"
    if ahead["next"] is None:
        return "VALID"
    return "DECIDED" if ahead["verdict"] in (BETTER, SAME) else "UNDECIDED"


def figures(one: Mapping[str, Any]) -> Iterator[Figure]:
    """Yields a plot of the speeds relative to the best ranked cell, with the intervals that decide the order."""
    decides, ahead = one["decides"], one["ahead"]
    ranked = [cell for cell in one["cells"] if cell["state"] == RANKED and cell["of_best"]]
    if not ranked or ahead is None:
        return
    unit = SPEEDS[decides]
    names = [
        f"{cell['name']}, {typeset(show_cell(cell['numbers'][decides]['mean'], unit))}"
        for cell in ranked
    ]
    speeds = [cell["of_best"] for cell in ranked]
    what = "samples/s" if decides == "throughput" else f"the latency at {decides}"
    known = [speed for speed in speeds if None not in (speed["low"], speed["high"])]
    above = [rounded(speed["high"] - speed["ratio"]) for speed in known]
    below = [rounded(speed["ratio"] - speed["low"]) for speed in known]
    most = max(speed["high"] if speed in known else speed["ratio"] for speed in speeds)
    end = min(most * 1.05, _MOST_RATIO)
    hatched = " A hatched bar has no interval: the reference, or a runtime with one round."
    figure = bars_in_rows(
        "Speed against the best",
        f"By {what}; longer is faster. The thin line is the 95 % interval of the ratio: if it reaches 1, the "
        f"difference from {ahead['best']} is not proven.{hatched if len(known) < len(speeds) else ''}",
        {"title": f"times as fast as {ahead['best']}", "range": [0, end]},
        names,
        {
            _MEASURED: [speed["ratio"] if speed in known else None for speed in speeds],
            "no interval": [None if speed in known else speed["ratio"] for speed in speeds],
        },
        "stack",
        showlegend=False,
    )
    interval = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    # A trace of its own, because plotly draws an interval without ends as a cap.
    own: Mapping[bool, Mapping[str, Any]] = {
        True: {"error_x": interval},
        False: {"marker": {"pattern": {"shape": "/"}}},
    }
    data = [{**trace, **own[trace["name"] == _MEASURED]} for trace in figure.data]
    at_best = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper"}
    shapes = [{**at_best, "line": {"dash": "dash", "width": 1}}]
    beyond = [
        {
            "x": end,
            "y": name,
            "text": f"up to {speed['high']:.3g}",
            "showarrow": False,
            "xanchor": "right",
            "yshift": 10,
        }
        for name, speed in zip(names, speeds, strict=True)
        if (speed["high"] or 0.0) > end
    ]
    yield figure._replace(
        data=data, layout={**figure.layout, "shapes": shapes, "annotations": beyond}
    )
