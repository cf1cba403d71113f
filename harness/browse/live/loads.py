"""Reduces a search's plot of the loads that were tried to the data that live.js draws after each run."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.browse import studies
from harness.browse.index import Entry
from harness.results.pages.page import Figure

_MARKS: Mapping[str, str] = {
    "circle": "disc",
    "circle-open": "circle",
    "x": "cross",
    "circle-x-open": "cross",
    "diamond-open": "diamond",
}
"""Maps a symbol of plotly to a symbol of live.js."""


def tried_loads(root: Path, entry: Entry) -> tuple[str, str]:
    """Returns the title of the plot and its data as JSON; ('', '') if the study has no plot of loads yet."""
    if entry.study not in studies.WITH_LINKS:
        return "", ""
    return _read(root, entry.path, entry.study, studies.changed_ns(root, entry))


@lru_cache(maxsize=32)
def _read(root: Path, path: str, study: str, _changed_ns: int) -> tuple[str, str]:
    """Caches the plot until the study's file changes, because a live page asks for it every second."""
    entry = Entry(path, "", study=study)
    figure = next((one for made in studies.articles(root, entry) for one in made.figures), None)
    return (figure.title, json.dumps(_data(figure), allow_nan=False)) if figure else ("", "")


def _data(figure: Figure) -> Mapping[str, Any]:
    axes = {name: figure.layout[f"{name}axis"] for name in "xy"}
    shapes = figure.layout.get("shapes", ())
    return {
        "titles": {name: axis["title"] for name, axis in axes.items()},
        "log": [name for name, axis in axes.items() if axis.get("type") == "log"],
        "bound": next((shape["y0"] for shape in shapes if shape.get("name") == "bound"), None),
        "traces": [*_traces(figure)],
    }


def _traces(figure: Figure) -> Iterator[Mapping[str, Any]]:
    for trace in figure.data:
        known = [
            (x, y, text)
            for x, y, text in zip(
                trace["x"], trace["y"], trace.get("text", [""] * len(trace["x"])), strict=True
            )
            if x is not None and y is not None
        ]
        if known:
            symbol = trace.get("marker", {}).get("symbol", "")
            yield {
                "name": trace["name"],
                "points": known,
                "mark": _MARKS.get(symbol, ""),  # '' for a line
            }
