"""Writes cold.html: the phases of a first answer as bars, with the tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from harness.core.units import NS_PER_MS
from harness.explain.cold import summary, tables
from harness.explain.cold.trials.turns import COLD, WARM
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bars_in_rows
from harness.results.pages.tables import Cell, Table, show_cell, with_intervals

PAGE = "cold.html"


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Writes the page and returns its path.

    Raises PluginUnavailable if plotly is not installed. content: the content of cold.json.
    """
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Mapping[str, Any]) -> list[Article]:
    return [Article(list(_head(content)), list(figures(content)), list(_tail(content)))]


def figures(content: Mapping[str, Any]) -> Iterator[Figure]:
    row = content["starts"][0]
    bars = {f"{t}": row[t] for t in (COLD, WARM) if row[t]}
    if bars:
        yield phases(
            "After the import of the framework",
            "Mean time of each phase of the first answer: with the file on the disk only, and in the page cache.",
            bars,
        )
        yield started(bars)
    if len(content["starts"]) > 1:
        yield phases(
            "The first answer, by format",
            "Mean time of each phase of a cold start after the import of the framework, for each way to store the model.",
            {
                f"{one['name']}, {one['backend']}": one[COLD] or one[WARM]
                for one in content["starts"]
                if one[COLD] or one[WARM]
            },
        )
    if any(one["rounds"] for one in content["sharing"]):
        yield sharing(content["sharing"])


def sharing(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws the memory of the first worker and the memory added by the second worker, for each way to share."""
    shown = [row for row in rows if row["rounds"]]
    keys = {"first worker": "alone_bytes", "second worker": "growth_bytes"}
    return bars_in_rows(
        "Memory of two workers",
        "Proportional set size of both processes: shared pages count once.",
        {"title": "MB"},
        [f"{row['way']}, {row['backend']}" for row in shown],
        {
            title: [mean([one[key] for one in row["rounds"]]) / 1e6 for row in shown]
            for title, key in keys.items()
        },
        "stack",
    )


def phases(title: str, about: str, trials: Mapping[str, Any]) -> Figure:
    """Draws the phases after the import as bars. trials: trials by bar name, from top to bottom."""
    times = [dict(summary.phase_times(one)) for one in trials.values()]
    series = {
        phase.title: [by[phase].mean / NS_PER_MS if phase in by else None for by in times]
        for phase in summary.PHASES
    }
    return bars_in_rows(title, about, {"title": "time, ms"}, list(trials), series, "stack")


def started(trials: Mapping[str, Any]) -> Figure:
    """Draws the first answer from the start of the process. trials: as in `phases`."""
    series: dict[str, Sequence[float]] = {
        phase.title: [summary.one(one, phase.key).mean / NS_PER_MS for one in trials.values()]
        for phase in summary.OUTSIDE
    }
    series["after the import"] = [summary.total(one).mean / NS_PER_MS for one in trials.values()]
    return bars_in_rows(
        "From the start of the process",
        "The start and the import take the same time for every model of the framework.",
        {"title": "time, ms"},
        list(trials),
        series,
        "stack",
    )


def badges(content: Mapping[str, Any]) -> Badges:
    return Badges(doubted=bool(content["doubts"]))


def _head(content: Mapping[str, Any]) -> Iterator[str]:
    words = ["Cold start", content["model"], tables.framework(content)]
    yield heading(words, badges(content))
    first, *others = tables.headlines(content)
    temperature, text = first.split(maxsplit=1)
    yield page.headline(f"{temperature.capitalize()}: {text}")
    yield from page.labelled([*others, *(f"{'doubt':<12}{doubt}" for doubt in content["doubts"])])


def _tail(content: Mapping[str, Any]) -> Iterator[str]:
    for table in tables.tables(content):
        yield from page.section(_with_shares(with_intervals(table)), cards=True)


def _with_shares(shown: Table) -> Table:
    """Puts each phase's share of the total into the cell of its time, so that the table fits a narrow screen."""
    is_share = [head.name.startswith("share ") for head in shown.columns]
    if not any(is_share):
        return shown
    rows: list[list[Cell]] = []
    for row in shown.rows:
        cells: list[Cell] = []
        for cell, share, head in zip(row, is_share, shown.columns, strict=True):
            if not share:
                cells.append(show_cell(cell, head.unit))
            elif cell is not None:
                cells[-1] = f"{cells[-1]}, {show_cell(cell, 'share')}"
        rows.append(cells)
    heads = [head for head, share in zip(shown.columns, is_share, strict=True) if not share]
    about = f"{shown.about}; the share is of the total after the import"
    return shown._replace(columns=heads, rows=rows, about=about)
