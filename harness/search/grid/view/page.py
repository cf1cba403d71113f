"""Writes grid.html: the heat maps, lines, fronts and tables of a grid."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.search.grid.cells.cells import Row
from harness.search.grid.view import report, tables
from harness.search.grid.view.view import View

PAGE = "grid.html"


def write(view: View, folder: Path) -> Path:
    """Writes the page. A PluginUnavailable names the missing extra."""
    head = [f"<h1>Grid · {escape(folder.resolve().name)}</h1>"]
    text = "\n".join(report.lines(view, folder))
    tail = [
        f'<h2>Tables</h2><div class="scroll"><pre style="white-space:pre">{escape(text)}</pre></div>'
    ]
    article = Article(head, [*_heat_maps(view), *_lines(view), *_fronts(view)], tail)
    return page.write([article], folder.resolve().name, folder / PAGE, script_in=folder)


def _heat_maps(view: View) -> Iterator[Figure]:
    for found in view.heat_maps():
        words = [view.labels[found["model"]], found["backend"], found["data"], *found["shape"]]
        yield Figure(
            f"{found['number']}: {' '.join(words)}, threads {found['threads']}",
            "Precision against batch; a gap is a cell that is absent or not ranked.",
            [
                {
                    "type": "heatmap",
                    "x": [str(batch) for batch in found["batch"]],
                    "y": found["precision"],
                    "z": found["z"],
                    "texttemplate": "%{z:,.4~r}"
                    if "accuracy" not in found["number"]
                    else "%{z:.2f}",
                    "colorscale": "Viridis",
                    "hoverongaps": False,
                }
            ],
            {
                "xaxis": {"title": "batch, samples", "type": "category"},
                "yaxis": {"title": "precision", "type": "category", "autorange": "reversed"},
            },
            height_rem=14,
        )


def _lines(view: View) -> Iterator[Figure]:
    """Throughput over batch, with a line for each way to run the model."""
    groups: dict[str, list[Row]] = {}
    for row in view.ranked:
        groups.setdefault(_label(view, row), []).append(row)
    data = [
        {
            "x": [row.batch for row in members],
            "y": [row.throughput_per_s for row in members],
            "error_y": {
                "array": [
                    (row.uncertainty or 0.0) * (row.throughput_per_s or 0.0) for row in members
                ]
            },
            "name": escape(label),
            "mode": "lines+markers",
        }
        for label, members in groups.items()
        if len(members) > 1
    ]
    if data:
        yield Figure(
            "Throughput over batch",
            "Bars: the uncertainty column, one standard error over blocks of neighbouring batches.",
            data,
            {
                "xaxis": {
                    "title": "batch, samples",
                    "type": "log",
                    "tickvals": sorted({row.batch for row in view.ranked}),
                },
                "yaxis": {"title": "samples/s", "rangemode": "tozero"},
                "showlegend": True,
            },
        )


def _label(view: View, row: Row) -> str:
    words = [view.labels[row.model], row.backend, row.precision, row.data, *row.shape]
    return f"{' '.join(words)}, threads {row.threads}"


def _fronts(view: View) -> Iterator[Figure]:
    """A scatter plot for each pair of measured numbers; filled marks are on the front."""
    beaten = tables.front(view.ranked)
    told = [(row, tables.numbers(row)) for row in view.ranked]
    names = list(dict.fromkeys(name for _, found in told for name in found))
    for x, y in combinations(names, 2):
        both = [(row, found) for row, found in told if x in found and y in found]
        if len(both) < 2 or any(len({f[n].value for _, f in both}) < 2 for n in (x, y)):
            continue
        yield Figure(
            f"{y.capitalize()} against {x}",
            "Filled: on the front, no other cell is at least as good in every number and better in one.",
            [_points(label, own, x, y, beaten) for label, own in _by_label(view, both).items()],
            {
                "xaxis": {"title": f"{x}, {both[0][1][x].unit}"},
                "yaxis": {"title": f"{y}, {both[0][1][y].unit}"},
                "showlegend": True,
            },
        )


def _by_label(view: View, both: Sequence[tuple[Row, Any]]) -> dict[str, list[tuple[Row, Any]]]:
    found: dict[str, list[tuple[Row, Any]]] = {}
    for row, numbers in both:
        found.setdefault(_label(view, row), []).append((row, numbers))
    return found


def _points(
    label: str, own: Sequence[tuple[Row, Any]], x: str, y: str, beaten: Any
) -> dict[str, Any]:
    return {
        "x": [found[x].value for _, found in own],
        "y": [found[y].value for _, found in own],
        "text": [f"batch {row.batch}" for row, _ in own],
        "name": escape(label),
        "mode": "markers",
        "marker": {
            "symbol": ["circle-open" if beaten[row.cell] else "circle" for row, _ in own],
            "size": 10,
        },
    }
