"""Reduces the page of a search in progress to its plot of the loads that were tried and its table of runs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.browse import studies
from harness.browse.index import Entry
from harness.core.files import reading
from harness.errors import HarnessError
from harness.results.pages.page import Figure
from harness.search.grid.cells.cells import GRID
from harness.search.grid.view.page import BY_BATCH
from harness.search.peak.page import LOADS
from harness.search.sweep.page import LATENCY

_MARKS: Mapping[str, str] = {
    "circle": "disc",
    "circle-open": "circle",
    "x": "cross",
    "circle-x-open": "cross",
    "diamond-open": "diamond",
}
"""Maps a symbol of plotly to a symbol of live.js."""


class Tried(NamedTuple):
    """The loads that a search has tried so far. Each text is empty if there is nothing to show yet."""

    title: str = ""
    """Title of the plot."""
    plot: str = ""
    """Data of the plot as JSON, which live.js draws."""
    about: str = ""
    """Text below the title."""
    table: str = ""
    """Table of the runs as HTML, as on the page of the finished search."""
    facts: str = ""
    """Definitions that qualify the result, as HTML, such as the doubts that all runs share."""


def tried_loads(root: Path, entry: Entry) -> Tried:
    if entry.study == "grid":
        return _of_grid(root, entry.path, studies.changed_ns(root, entry))
    if entry.study not in studies.WITH_LINKS:
        return Tried()
    return _read(root, entry.path, entry.study, studies.changed_ns(root, entry))


def planned_plot(root: Path, entry: Entry) -> str:
    """Returns the title of the plot that the page of a search in progress will have; '' if it may not have one."""
    if title := {"peak": LOADS, "sweep": LATENCY}.get(entry.study or ""):
        return title
    if entry.study == "grid":
        with suppress(OSError, HarnessError), reading(entry.path):
            batches = studies.read(root, f"{entry.path}/{GRID}")["axes"]["batch"]
            return BY_BATCH if len(batches) > 1 else ""
    return ""


@lru_cache(maxsize=32)
def _of_grid(root: Path, path: str, _changed_ns: int) -> Tried:
    """Returns the throughput of the cells so far, once a way to run the model has two batches."""
    articles = studies.articles(root, Entry(path, "", study="grid"), picks=False)
    for figure in (one for made in articles for one in made.figures if one.title == BY_BATCH):
        data = _data(figure)
        lines = [{**trace, "mark": ""} for trace in data["traces"]]
        return Tried(figure.title, json.dumps({**data, "traces": lines}, allow_nan=False))
    return Tried()


@lru_cache(maxsize=32)
def _read(root: Path, path: str, study: str, _changed_ns: int) -> Tried:
    """Caches the texts until the study's file changes, because a live page asks for them every second."""
    articles = studies.articles(root, Entry(path, "", study=study), picks=False)
    table = "".join(line for made in articles for line in made.tail)
    facts = "".join(line for made in articles for line in made.head if line.startswith("<dl"))
    for figure in (one for made in articles for one in made.figures):
        plot = json.dumps(_data(figure), allow_nan=False)
        return Tried(figure.title, plot, figure.about, table, facts)
    return Tried(table=table, facts=facts)


def _data(figure: Figure) -> Mapping[str, Any]:
    axes = {name: figure.layout[f"{name}axis"] for name in "xy"}
    shapes = figure.layout.get("shapes", ())
    return {
        "titles": {name: axis["title"] for name, axis in axes.items()},
        "marks": axes["x"].get("tickvals"),
        "log": [name for name, axis in axes.items() if axis.get("type") == "log"],
        "bound": next((shape["y0"] for shape in shapes if shape.get("name") == "bound"), None),
        "peak": next((shape["x0"] for shape in shapes if shape.get("name") == "peak"), None),
        "traces": [*_traces(figure)],
    }


def _traces(figure: Figure) -> Iterator[Mapping[str, Any]]:
    for trace in figure.data:
        count = len(trace["x"])
        texts, places = trace.get("text", [""] * count), trace.get("textposition", [""] * count)
        known = [
            (x, y, text, place)
            for x, y, text, place in zip(trace["x"], trace["y"], texts, places, strict=True)
            if x is not None and y is not None
        ]
        if known:
            symbol = trace.get("marker", {}).get("symbol", "")
            yield {
                "name": trace["name"],
                "points": known,
                "mark": _MARKS.get(symbol, ""),  # '' for a line
            }
