"""Writes cold.html: the phases of a first answer as bars, with the tables."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from harness.core.units import NS_PER_MS
from harness.explain.cold import summary, tables
from harness.explain.cold.trials.turns import COLD, WARM
from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import rounded

PAGE = "cold.html"

_COLOURS = {
    "read": "#8c6d31",
    "deserialise": "#c0392b",
    "prepare": "#e67e22",
    "rest": "#d9a520",
    "input": "#4a78b0",
    "first": "#4c9a5b",
}


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Returns the page's path. Raises PluginUnavailable without plotly. content: of cold.json."""
    article = Article(list(_head(content)), list(figures(content)), list(_tail(content)))
    return page.write([article], folder.resolve().name, folder / PAGE, script_in=folder)


def figures(content: Mapping[str, Any]) -> Iterator[Figure]:
    row = content["starts"][0]
    if len(content["starts"]) > 1:
        yield stacked(
            "The first answer, by format",
            "Mean time of each phase of a cold start, for each way to store the model.",
            {
                f"{one['name']}, {one['backend']}": one[COLD] or one[WARM]
                for one in reversed(content["starts"])
                if one[COLD] or one[WARM]
            },
        )
    if any(one["rounds"] for one in content["sharing"]):
        yield sharing(content["sharing"])
    bars = {f"{t}": row[t] for t in (WARM, COLD) if row[t]}
    if bars:
        yield stacked(
            "The first answer, by phase",
            "Mean time of each phase in a fresh process: with the file on the disk only, and in the page cache.",
            bars,
        )


def sharing(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Memory of the first worker, and what the second one adds, for each way."""
    shown = [row for row in reversed(rows) if row["rounds"]]
    names = [f"{row['way']}, {row['backend']}" for row in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": title,
            "y": names,
            "x": [rounded(mean([one[key] for one in row["rounds"]]), 1e-6) for row in shown],
            "marker": {"color": colour},
        }
        for key, title, colour in (
            ("alone_bytes", "first worker", "#4a78b0"),
            ("growth_bytes", "second worker", "#c0392b"),
        )
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": "MB"},
        "yaxis": {"type": "category", "automargin": True},
        "legend": {"traceorder": "normal"},
    }
    about = "Proportional set size of both: pages that they share count once."
    return Figure("Memory of two workers", about, data, layout, max(23.0, 9 + 2.4 * len(shown)))


def stacked(title: str, about: str, bars: Mapping[str, Any]) -> Figure:
    """bars: name -> trials, from the lowest bar up."""
    times = {name: dict(summary.phase_times(trials)) for name, trials in bars.items()}
    data = []
    for phase in summary.PHASES:
        values = [by[phase].mean if phase in by else None for by in times.values()]
        if any(value is not None for value in values):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": phase.title,
                    "y": list(times),
                    "x": [rounded(value, 1 / NS_PER_MS) for value in values],
                    "marker": {"color": _COLOURS[phase.key]},
                }
            )
    layout = {
        "barmode": "stack",
        "xaxis": {"title": "ms"},
        "yaxis": {"type": "category", "automargin": True},
        "legend": {"traceorder": "normal"},
    }
    return Figure(title, about, data, layout, max(23.0, 9 + 2.4 * len(bars)))


def _head(content: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>Cold start · {escape(content['model'])} · {escape(tables.framework(content))}</h1>"
    yield from (f"<p><b>{escape(line)}</b></p>" for line in tables.headlines(content))
    yield from (f'<p class="quiet">{escape(doubt)}</p>' for doubt in content["doubts"])


def _tail(content: Mapping[str, Any]) -> Iterator[str]:
    for table in tables.tables(content):
        yield from page.section(table)
